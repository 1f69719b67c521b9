// Allocation and fragmentation over time, drawn by uPlot.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact.module.js";
import { number } from "./model.js";
import { go } from "./route.js";

export const SPANS = { "10m": 600, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, all: Infinity };

const GIB = 1024;

// Fields of a point, see trend.py.
const AT = 0, SIZE = 1, PROMISED = 2, BEYOND = 3, FREE = 4, WHOLE_FREE = 5, WHOLE = 6, LARGEST = 7, PENDING = 8;

const CHARTS = {
  allocation: {
    title: "Allocation", unit: "% of all cards' memory", range: [0, 100],
    lines: [
      ["promised", "--promised", (point) => (point[SIZE] ? (100 * point[PROMISED]) / point[SIZE] : null), []],
      ["with use beyond", "--beyond", (point) => (point[SIZE] ? (100 * (point[PROMISED] + point[BEYOND])) / point[SIZE] : null), [6, 4]],
    ],
  },
  fragmentation: {
    title: "Fragmentation", unit: "% of free memory on cards in part use", range: [0, 100],
    lines: [["fragmented", "--foreign", (point) => (point[FREE] ? (100 * (point[FREE] - point[WHOLE_FREE])) / point[FREE] : null), []]],
  },
  room: {
    title: "Room", unit: "GiB on one card, and whole cards", range: null,
    lines: [
      ["largest free card, GiB", "--promised", (point) => point[LARGEST] / GIB, []],
      ["whole cards free", "--foreign", (point) => point[WHOLE], [6, 4]],
    ],
  },
  pending: {
    title: "Pods that wait", unit: "pods", range: null,
    lines: [["pending", "--beyond", (point) => point[PENDING], []]],
  },
};

function useTheme() {
  const [, redraw] = useState(0);
  useEffect(() => {
    const again = () => redraw((count) => count + 1);
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", again);
    addEventListener("gpupack-theme", again);
    return () => { media.removeEventListener("change", again); removeEventListener("gpupack-theme", again); };
  }, []);
  return getComputedStyle(document.documentElement).getPropertyValue("--surface");
}

const two = (amount) => String(amount).padStart(2, "0");

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// Times of the axis, in the browser's zone: the time of day, and below it the day wherever a new one begins.
export function times(splits) {
  let before = "";
  return splits.map((seconds) => {
    const at = new Date(seconds * 1000);
    const day = `${MONTHS[at.getMonth()]} ${at.getDate()}`;
    const text = `${two(at.getHours())}:${two(at.getMinutes())}${day === before ? "" : `\n${day}`}`;
    before = day;
    return text;
  });
}

function Chart({ kind, points, height }) {
  const { title, unit, range, lines } = CHARTS[kind];
  const box = useRef(null), plot = useRef(null);
  const theme = useTheme();
  const data = useMemo(() => [points.map((point) => point[AT]), ...lines.map(([, , value]) => points.map(value))], [points, kind]);
  const latest = lines.map(([, , value]) => value(points[points.length - 1]));

  useLayoutEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const chart = new uPlot({
      width: box.current.clientWidth, height,
      legend: { show: false }, cursor: { y: false, points: { size: 6 } },
      scales: { y: range ? { range } : { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [{ ...axis, space: 70, values: (_, splits) => times(splits), size: 40 }, { ...axis, size: 44 }],
      series: [{}, ...lines.map(([label, stroke, , dash]) => ({
        label, stroke: colour(stroke), width: 2, dash, points: { show: points.length < 3 },
        fill: dash.length ? undefined : `color-mix(in srgb, ${colour(stroke)} 18%, transparent)`,
      }))],
    }, data, box.current);
    plot.current = chart;
    const observer = new ResizeObserver(([entry]) => chart.setSize({ width: Math.floor(entry.contentRect.width), height }));
    observer.observe(box.current);
    return () => { observer.disconnect(); chart.destroy(); plot.current = null; };
  }, [kind, theme, height]);

  useEffect(() => { plot.current?.setData(data); }, [data]);

  const said = lines.map(([label], at) => `${label} ${latest[at] == null ? "unknown" : number(latest[at])}`).join(", ");
  return html`<figure class="chart">
    <figcaption><strong>${title}</strong> <span class="muted">${unit}</span>
      <span class="keys">${lines.map(([label, stroke, , dash], at) => html`<span><span class="key ${stroke.slice(2)} ${dash.length ? "dashed" : ""}"></span>
        ${label} <b>${latest[at] == null ? "–" : number(latest[at])}</b></span>`)}</span></figcaption>
    <div ref=${box} role="img" aria-label=${`${title} over time, ${unit}. Now: ${said}`}></div>
  </figure>`;
}

function recent(points, seconds) {
  if (!points.length || seconds === Infinity) return points;
  const from = points[points.length - 1][AT] - seconds;
  return points.filter((point) => point[AT] >= from);
}

export function Trends({ trend, query, short }) {
  const span = SPANS[query.span] ? query.span : short ? "1h" : "6h";
  const points = useMemo(() => recent(trend, SPANS[span]), [trend, span]);
  if (points.length < 2) return html`<p class="empty">The page remembers sums while it runs: the first line comes within 20 seconds.</p>`;
  if (short) return html`<div><${Chart} kind="allocation" points=${points} height=${120} /><${Chart} kind="fragmentation" points=${points} height=${120} /></div>`;
  return html`<div>
    <div class="spans" role="group" aria-label="Time shown">${Object.keys(SPANS).map((each) => html`<button type="button"
      aria-pressed=${each === span} onClick=${() => go("trends", { span: each })}>${each}</button>`)}</div>
    <div class="charts">${Object.keys(CHARTS).map((kind) => html`<${Chart} key=${kind} kind=${kind} points=${points} height=${220} />`)}</div>
  </div>`;
}
