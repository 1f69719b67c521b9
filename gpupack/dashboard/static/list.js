// Rows of very different heights, of which only those in sight are in the document.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact.module.js";

const BEYOND = 400; // pixels above and below the window that are drawn too

export function offsets(items, height) {
  const found = new Float64Array(items.length + 1);
  for (let at = 0; at < items.length; at += 1) found[at + 1] = found[at] + height(items[at]);
  return found;
}

function first(starts, position) {
  let low = 0, high = starts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= position) low = middle; else high = middle - 1;
  }
  return Math.min(low, starts.length - 2);
}

// items: values; height(item): pixels; draw(item, at): what to show; into: a position to bring into sight, once
// for each value of `when`: what changes by itself must not move the page under somebody's eyes.
export function List({ items, height, draw, keyOf, into, when, ...attributes }) {
  const box = useRef(null);
  const starts = useMemo(() => offsets(items, height), [items, height]);
  const [window_, setWindow] = useState([0, 1200]);

  useLayoutEffect(() => {
    let due = 0;
    const look = () => {
      due = 0;
      if (!box.current) return;
      const top = -box.current.getBoundingClientRect().top;
      setWindow((before) => {
        const now = [Math.floor(top / 100) * 100, innerHeight];
        return now[0] === before[0] && now[1] === before[1] ? before : now;
      });
    };
    const soon = () => { due = due || requestAnimationFrame(look); };
    look();
    addEventListener("scroll", soon, { passive: true });
    addEventListener("resize", soon);
    return () => {
      removeEventListener("scroll", soon);
      removeEventListener("resize", soon);
      cancelAnimationFrame(due);
    };
  }, []);

  useEffect(() => {
    if (!(into >= 0) || !box.current) return;
    const top = box.current.getBoundingClientRect().top + scrollY + starts[into];
    const bottom = top + starts[into + 1] - starts[into];
    const header = document.querySelector(".bar-top")?.offsetHeight ?? 0;
    if (top < scrollY + header + 8) scrollTo({ top: top - header - 60 });
    else if (bottom > scrollY + innerHeight - 8) scrollTo({ top: bottom - innerHeight + 60 });
  }, [when]);

  if (!items.length) return null;
  const from = first(starts, window_[0] - BEYOND);
  const until = first(starts, window_[0] + window_[1] + BEYOND);
  const shown = [];
  for (let at = Math.max(0, from); at <= until; at += 1) {
    shown.push(html`<div class="slot" role="presentation" key=${keyOf(items[at])}
      style=${{ top: `${starts[at]}px`, height: `${starts[at + 1] - starts[at]}px` }}>${draw(items[at], at)}</div>`);
  }
  return html`<div ...${attributes} ref=${box} class="list" style=${{ height: `${starts[items.length]}px` }}>${shown}</div>`;
}
