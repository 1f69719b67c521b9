// What a card does and did during the last ten minutes: figures with small curves beside them.

import { html, useEffect, useState } from "./vendor/htm-preact.module.js";
import { number } from "./model.js";

const EVERY = 5000; // milliseconds; node daemons measure as often
const WIDTH = 96, HEIGHT = 22, SPAN = 600; // pixels, and seconds

// Field, title, unit, and the value at the top of its curve: a number, or taken from the card.
const VALUES = [
  ["utilization_percent", "Utilization", "%", () => 100],
  ["memory_utilization_percent", "Bandwidth", "%", () => 100],
  ["power_w", "Power", "W", (now) => now.power_limit_w],
  ["temperature_c", "Temperature", "°C", () => 100],
  ["sm_clock_mhz", "Clock", "MHz", () => undefined],
];

// Asked again and again while the drawer is open and seen.
export function useTelemetry(name, live) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    setFound(null);
    if (!live) return undefined;
    const stop = new AbortController();
    const ask = () => {
      if (document.hidden) return;
      fetch(`api/telemetry?name=${encodeURIComponent(name)}`, { signal: stop.signal })
        .then((answer) => answer.json()).then(setFound)
        .catch((error) => { if (error.name !== "AbortError") setFound({ error: String(error), cards: [] }); });
    };
    ask();
    const each = setInterval(ask, EVERY);
    return () => { clearInterval(each); stop.abort(); };
  }, [name, live]);
  return found;
}

// Points of the curve, in pieces: where a value was not told the line ends, and begins again.
export function pieces(ages, values, top) {
  const most = top ?? Math.max(1, ...values.filter((value) => value != null));
  const found = [];
  let open = null;
  values.forEach((value, at) => {
    if (value == null) { open = null; return; }
    const x = WIDTH * (1 - Math.min(1, ages[at] / SPAN));
    const y = 1 + (HEIGHT - 2) * (1 - Math.min(1, value / most));
    if (!open) { open = []; found.push(open); }
    open.push(`${x.toFixed(1)},${y.toFixed(1)}`);
  });
  return found;
}

function Spark({ ages, values, top }) {
  return html`<svg class="spark" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">
    <line x1="0" y1=${HEIGHT - 0.5} x2=${WIDTH} y2=${HEIGHT - 0.5} />
    ${pieces(ages, values, top).map((points) => (points.length === 1
      ? html`<circle cx=${points[0].split(",")[0]} cy=${points[0].split(",")[1]} r="1.5" />`
      : html`<polyline points=${points.join(" ")} />`))}
  </svg>`;
}

export function Telemetry({ telemetry, uuid }) {
  const card = telemetry?.cards?.find((each) => each.cards.includes(uuid));
  if (!card) return null;
  const { now, history } = card;
  const reasons = (now.throttle_reasons ?? []).filter((reason) => reason !== "gpu_idle");
  const shown = VALUES.filter(([field]) => now[field] != null || history[field]);
  if (!shown.length && !reasons.length) return null;
  return html`<div class="telemetry">
    <dl>${shown.map(([field, title, unit, top]) => html`<div key=${field}>
      <dt>${title}</dt>
      <dd><b>${now[field] == null ? "–" : number(now[field])}</b> ${unit}${field === "power_w" && now.power_limit_w != null ? ` of ${number(now.power_limit_w)}` : ""}</dd>
      ${history[field] && html`<${Spark} ages=${history.age_s} values=${history[field]} top=${top(now)} />`}
    </div>`)}</dl>
    ${reasons.length > 0 && html`<p class="note">Slowed by ${reasons.map((reason) => reason.replaceAll("_", " ")).join(", ")}.</p>`}
    ${card.cards.length > 1 && html`<p class="note">Of the whole card, with all its instances.</p>`}
  </div>`;
}
