// The cards of all nodes: grouped, filtered, as bars or as a table.

import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact.module.js";
import { Bar, Figures, Legend } from "./bar.js";
import { focusCard } from "./focus.js";
import { List } from "./list.js";
import { memo } from "./memo.js";
import {
  SHOWS, SORTS, add, cardOf, filtered, grouped, labelKeys, number, percent, plural, sumsOf, words, zero,
} from "./model.js";
import { go } from "./route.js";
import { CardTable } from "./table.js";

const NAME = 220, CARD = 84, CARD_NARROW = 74, NARROW = 720;
const LINE = 33, PADDING = 15, HEADER = 46, NAME_LINE = 22;

// How wide the cards' part is decides how many stand beside each other, the same for all nodes.
function useLayout(most) {
  const box = useRef(null);
  const [width, setWidth] = useState(1000);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    setWidth(Math.floor(box.current.clientWidth));
    return () => observer.disconnect();
  }, []);
  const narrow = width < NARROW;
  const room = Math.max(2, Math.floor((width - (narrow ? 8 : NAME + 16)) / (narrow ? CARD_NARROW : CARD)));
  const across = most <= room ? Math.max(most, narrow ? 4 : 8) : room >= 8 ? 8 : room >= 4 ? 4 : room;
  return { box, narrow, across: Math.min(across, Math.max(room, 2)) };
}

const TYPING = 200; // milliseconds without a key before the pods are searched

// Which pods are where only the server knows.
function useNodesWithPod(q = "") {
  const [found, setFound] = useState(null);
  useEffect(() => {
    setFound(null);
    if (q.trim().length < 2 || q.includes("!")) return;
    const stop = new AbortController();
    const later = setTimeout(() => {
      fetch(`api/find?pod=${encodeURIComponent(q.trim())}`, { signal: stop.signal })
        .then((answer) => answer.json()).then(({ nodes }) => setFound(new Set(nodes))).catch(() => {});
    }, TYPING);
    return () => { clearTimeout(later); stop.abort(); };
  }, [q]);
  return found;
}

function Controls({ query, set, nodes, count, input }) {
  const keys = useMemo(() => labelKeys(nodes), [nodes.length]);
  return html`<form class="controls" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label class="grow"><span class="sr">Filter nodes</span>
      <input ref=${input} type="search" placeholder="Filter ( / )" title="Words of a name, model, status, label=value, or a pod; !word leaves out" value=${query.q ?? ""}
        onInput=${(event) => set({ q: event.target.value })} autocomplete="off" spellcheck=${false} />
    </label>
    <label><span class="label">Group</span>
      <select value=${query.group ?? ""} onChange=${(event) => set({ group: event.target.value })}>
        <option value="">none</option><option value="model">model</option><option value="state">node status</option>
        ${keys.map((key) => html`<option value=${`label:${key}`}>${key}</option>`)}
      </select></label>
    <label><span class="label">Show</span>
      <select value=${query.show ?? ""} onChange=${(event) => set({ show: event.target.value })}>
        ${Object.entries(SHOWS).map(([key, [text]]) => html`<option value=${key}>${text}</option>`)}
      </select></label>
    <label><span class="label">Sort</span>
      <select value=${query.sort ?? ""} onChange=${(event) => set({ sort: event.target.value })}>
        ${Object.entries(SORTS).map(([key, [text]]) => html`<option value=${key}>${text}</option>`)}
      </select></label>
    <label><span class="label">As</span>
      <select value=${query.as ?? ""} onChange=${(event) => set({ as: event.target.value })}>
        <option value="">bars</option><option value="table">table</option>
      </select></label>
    ${query.fits && html`<button type="button" class="chip" onClick=${() => set({ fits: "" })}>
      room for ${query.fits} GiB <span aria-hidden="true">✕</span><span class="sr">remove</span></button>`}
    <output class="count" aria-live="polite">${count === nodes.length
      ? plural(count, "node") : `${count.toLocaleString("en")} of ${plural(nodes.length, "node")}`}</output>
  </form>`;
}

function GroupHeader({ group, open, toggle }) {
  const { sums } = group;
  return html`<div class="group" role="row">
    <div role="gridcell"><button type="button" aria-expanded=${open} onClick=${toggle}>
      <span class="twist" aria-hidden="true">${open ? "▾" : "▸"}</span> ${group.key}</button></div>
    <span class="muted" role="gridcell">${[
      `${plural(sums.nodes, "node")}, ${plural(sums.cards, "card")}`, `${percent(sums.allocated, sums.size)} promised`,
      `${number(sums.free / 1024)} GiB free`, `${plural(sums.whole, "whole card")} free`].join(" · ")}</span>
  </div>`;
}

// What a node has: "L40S", or "2 A100, 1 T4" where its cards differ.
function kinds(node) {
  const counts = new Map();
  for (const row of node.cards) {
    const { model } = cardOf(node, row);
    if (model) counts.set(model, (counts.get(model) ?? 0) + 1);
  }
  const names = [...counts].map(([model, count]) => [model.replace(/^NVIDIA /, ""), count]);
  return names.length === 1 ? names[0][0] : names.map(([name, count]) => `${count} ${name}`).join(", ");
}

const NodeRow = memo(({ node, at, across, narrow, focused, query, largest }) => {
  const cards = node.cards.map((row) => cardOf(node, row));
  const sums = sumsOf(node);
  const odd = node.status !== "Ready" || node.remark;
  return html`<div class="node ${narrow ? "narrow" : ""} ${node.open ? "" : "shut"}" role="row" aria-rowindex=${at + 1}>
    <div class="who" role="rowheader">
      <a href=${`#/cards?${new URLSearchParams({ ...query, node: node.name })}`} class="name" title=${node.name}
        tabindex="-1">${node.name}</a>
      <span class="sub" title=${node.remark || kinds(node)}>
        ${odd && (node.cards.length || node.status !== "Ready") ? html`<span class="odd">${node.status !== "Ready" ? node.status.replaceAll(",", ", ") : node.remark}</span> ` : ""}
        ${node.cards.length ? `${number(sums.allocated / 1024)}/${number(sums.size / 1024)} GiB` : ""}
        ${!odd && node.models.length ? ` · ${kinds(node)}` : ""}
      </span>
    </div>
    <div class="cards" role="presentation" style=${{ gridTemplateColumns: `repeat(${across}, 1fr)` }}>
      ${cards.map((card, position) => html`<div role="gridcell" class="cell" key=${position}>
        <button type="button" class="card" id=${`card-${node.name}-${position}`} data-node=${node.name} data-card=${position}
          tabindex=${focused === position ? 0 : -1}
          aria-label=${`${node.name}, ${words(node, card)}`} title=${words(node, card)}
          aria-current=${query.node === node.name && Number(query.card) === position ? "true" : undefined}
          onClick=${() => go("cards", { ...query, node: node.name, card: position })}>
          <${Bar} node=${node} card=${card} most=${largest} /><${Figures} node=${node} card=${card} />
        </button></div>`)}
      ${!cards.length && html`<p class="nothing">${node.remark || "no cards"}</p>`}
    </div>
  </div>`;
});

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, 0], PageDown: [10, 0] };

// The arrow keys go from card to card, also to those that are not in the document yet.
function useArrows(items) {
  const rows = useMemo(() => items.map((item, at) => [item.node, at]).filter(([node]) => node?.cards.length), [items]);
  const [focus, setFocus] = useState({ node: "", card: 0, wanted: 0 });
  const known = rows.findIndex(([node]) => node.name === focus.node);
  const row = rows[Math.max(known, 0)];
  const current = row ? { node: row[0].name, card: Math.min(known < 0 ? 0 : focus.card, row[0].cards.length - 1) } : focus;
  const onKeyDown = useCallback((event) => {
    const place = event.target.closest("button.card");
    const step = STEPS[event.key] ?? (event.key === "Home" ? [-Infinity, 0] : event.key === "End" ? [Infinity, 0] : null);
    if (!place || !step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const at = rows.findIndex(([node]) => node.name === place.dataset.node);
    const to = Math.min(Math.max(at + step[0], 0), rows.length - 1);
    const card = Math.min(Math.max(Number(place.dataset.card) + step[1], 0), rows[to][0].cards.length - 1);
    setFocus(({ wanted }) => ({ node: rows[to][0].name, card, wanted: wanted + 1 }));
  }, [rows]);
  useEffect(() => {
    if (!focus.wanted) return;
    return focusCard(focus.node, focus.card);
  }, [focus]);
  return { focus: current, onKeyDown, at: row?.[1], turn: focus.wanted };
}

export function Cards({ nodes, query, input }) {
  const shut = useRef(new Set());
  const [, redraw] = useState(0);
  const set = useCallback((change) => go("cards", { ...query, ...change }, { replace: true }), [query]);
  const { q, show, fits, sort, group = "" } = query;
  const withPod = useNodesWithPod(q);
  const kept = useMemo(
    () => {
      const [, order] = SORTS[sort ?? ""] ?? SORTS[""];
      const found = filtered(nodes, { q, show, fits }, withPod);
      return order ? found.sort(order) : found;
    },
    [nodes, q, show, fits, sort, withPod],
  );
  const most = useMemo(() => nodes.reduce((found, node) => Math.max(found, node.cards.length), 1), [nodes]);
  const largest = useMemo(() => nodes.reduce((found, node) => node.cards.reduce((size, [, units]) => Math.max(size, units * node.unit), found), 0), [nodes]);
  const { box, narrow, across } = useLayout(most);
  const folded = [...shut.current].join("\n");
  const items = useMemo(() => grouped(kept, group).flatMap(({ key, nodes: members }) => {
    const open = !shut.current.has(key);
    const rows = open ? members.map((node) => ({ node })) : [];
    return group ? [{ key, open, sums: members.reduce(add, zero()) }, ...rows] : rows;
  }), [kept, group, folded]);
  const height = useCallback((item) => (item.node
    ? Math.max(1, Math.ceil(item.node.cards.length / across)) * LINE + PADDING + (narrow ? NAME_LINE : 0)
    : HEADER), [across, narrow]);
  const { focus, onKeyDown, at, turn } = useArrows(items);
  const chosen = query.node && items.findIndex((item) => item.node?.name === query.node);
  const last = useRef(turn);
  const moved = last.current !== turn; // by the arrow keys, else by a URL or a change of the layout
  useEffect(() => { last.current = turn; }, [turn]);

  const draw = (item, at) => (item.node
    ? html`<${NodeRow} node=${item.node} at=${at} across=${across} narrow=${narrow} query=${query} largest=${largest}
        focused=${focus.node === item.node.name ? focus.card : -1} />`
    : html`<${GroupHeader} group=${item} open=${item.open} toggle=${() => {
      if (!shut.current.delete(item.key)) shut.current.add(item.key);
      redraw((count) => count + 1);
    }} />`);

  return html`<section aria-label="Cards of all nodes">
    <${Controls} query=${query} set=${set} nodes=${nodes} count=${kept.length} input=${input} />
    <div class="frame" ref=${box}>
      ${query.as === "table"
        ? html`<${CardTable} nodes=${kept} query=${query} />`
        : html`<${List} items=${items} height=${height} draw=${draw} into=${moved ? at : query.node ? chosen : undefined}
            when=${`${turn} ${query.node ?? ""} ${across}`}
            keyOf=${(item) => (item.node ? item.node.name : `group ${item.key}`)}
            role="grid" aria-label="Cards by node; arrow keys move, Enter opens" aria-rowcount=${items.length} onKeyDown=${onKeyDown} />`}
      ${!kept.length && html`<p class="empty">${nodes.length
        ? html`No node passes the filter. <button type="button" onClick=${() => go("cards", {})}>Show all</button>`
        : "No node publishes cards. Label nodes with gpupack.io/node=true and see gpupack top."}</p>`}
    </div>
    ${query.as !== "table" && html`<${Legend} />`}
  </section>`;
}

