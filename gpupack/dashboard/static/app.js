// The page: sums, views, and what is chosen, from the URL.

import { html, render, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.module.js";
import { Cards } from "./cards.js";
import { Drawer } from "./drawer.js";
import { memo } from "./memo.js";
import { add, fragmentation, number, percent, plural, zero } from "./model.js";
import { href, useRoute } from "./route.js";
import { connect, nodesInOrder, store, subscribe } from "./store.js";
import { Trends } from "./trends.js";
import { Fits, Pending, Queues } from "./views.js";

const root = document.getElementById("app");
const NOTHING = {};
const TITLES = { cards: "Cards", pending: "Pending", fits: "What fits", trends: "Over time", queues: "Queues" };

function useStore() {
  const [, draw] = useState(0);
  useEffect(() => {
    draw(store.version); // what came before this effect, which runs after the first frame
    return subscribe(() => draw(store.version));
  }, []);
  return store.version;
}

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  const choose = (event) => {
    const chosen = event.target.value;
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    try {
      if (chosen === "system") localStorage.removeItem("gpupack-theme");
      else localStorage.setItem("gpupack-theme", chosen);
    } catch { /* it is chosen for this page only */ }
    setTheme(chosen);
    dispatchEvent(new Event("gpupack-theme"));
  };
  return html`<label class="theme"><span class="sr">Theme</span><select value=${theme} onChange=${choose}>
    ${["system", "light", "dark"].map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`;
}

function Connection() {
  const { about, connected, lost } = store;
  if (!about.live) return html`<span class="state file" role="status">from ${about.source}</span>`;
  if (connected) return html`<span class="state live" role="status"><span class="dot" aria-hidden="true"></span>live</span>`;
  const since = lost ? ` since ${new Date(lost).toLocaleTimeString()}` : "";
  return html`<span class="state lost" role="status">${store.ready ? `not connected${since}` : "connecting"}</span>`;
}

function Top({ view, query, sums }) {
  const counts = { pending: store.pending.pods.length + store.pending.more, queues: store.queues.queues.length };
  const here = { cards: query };
  return html`<header class="bar-top">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the view</a>
    <h1>gpupack <span class="source" title=${store.about.source}>${store.about.live ? store.about.source : ""}</span></h1>
    <nav aria-label="Views">${Object.entries(TITLES).map(([name, title]) => html`<a href=${href(name, view === name ? here[name] : {})}
      aria-current=${view === name ? "page" : undefined}>${title}${counts[name] ? html` <span class="tally">${counts[name]}</span>` : ""}</a>`)}</nav>
    <span class="right"><${Connection} /><${Theme} /></span>
  </header>
  <${Sums} sums=${sums} />`;
}

function Sums({ sums }) {
  const gib = (mib) => number(mib / 1024);
  const waiting = store.pending.pods.length + store.pending.more;
  const tiles = [
    ["Promised", percent(sums.allocated, sums.size), `${gib(sums.allocated)} of ${gib(sums.size)} GiB`],
    ["Free", `${gib(sums.free)} GiB`, plural(sums.nodes - sums.closed, "node takes pods", "nodes take pods")],
    ["Whole cards free", sums.whole.toLocaleString("en"), `of ${plural(sums.cards, "card")}`],
    ["Largest free card", `${gib(sums.largest)} GiB`, "free on one card"],
    ["Fragmentation", percent(fragmentation(sums), 1), "of free memory"],
    ["Used beyond", `${gib(sums.overuse)} GiB`, "promises, or by others", sums.overuse > 0],
    ["Out of use", `${sums.unhealthy + sums.cordoned}`, `${sums.unhealthy} unhealthy, ${sums.cordoned} cordoned`, sums.unhealthy > 0],
    ["Pods waiting", waiting.toLocaleString("en"), "for cards", waiting > 0],
  ];
  return html`<dl class="sums" aria-label="The cluster in sums">${tiles.map(([name, value, text, warn]) => html`<div class=${warn ? "warn" : ""}>
    <dt>${name}</dt><dd><b>${value}</b> <span>${text}</span></dd></div>`)}</dl>`;
}

const Aside = memo(({ pending, fits, trend }) => html`<aside class="side" aria-label="At a glance">
  <section><h2><a href=${href("pending")}>Pending</a></h2><${Pending} pending=${pending} short=${true} /></section>
  <section><h2><a href=${href("fits")}>What fits now</a></h2><${Fits} fits=${fits} short=${true} /></section>
  <section><h2><a href=${href("trends")}>Over time</a></h2><${Trends} trend=${trend} query=${NOTHING} short=${true} /></section>
</aside>`);

function View({ view, query, nodes, input }) {
  if (view === "pending") return html`<h2>Pods that wait for cards</h2><${Pending} pending=${store.pending} />`;
  if (view === "fits") return html`<h2>What fits now</h2><${Fits} fits=${store.fits} />`;
  if (view === "trends") return html`<h2>Over time</h2><${Trends} trend=${store.trend} query=${query} />`;
  if (view === "queues") return html`<h2>Queues</h2><${Queues} queues=${store.queues} />`;
  return html`<${Cards} nodes=${nodes} query=${query} input=${input} />`;
}

function App() {
  const version = useStore();
  const { view, query } = useRoute();
  const input = useRef(null);
  const nodes = useMemo(nodesInOrder, [version]);
  const sums = useMemo(() => nodes.reduce(add, zero()), [nodes]);
  useEffect(() => { document.title = `${TITLES[view]} · gpupack`; }, [view]);
  useEffect(() => {
    const onKey = (event) => {
      if (event.target.closest?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/" && input.current) { event.preventDefault(); input.current.focus(); }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const drawn = view === "cards" && Boolean(query.node);
  useEffect(() => root.classList.toggle("drawn", drawn), [drawn]);
  if (!store.ready) return html`<p class="hint" role="status">${store.lost ? "The dashboard does not answer; trying again." : "Reading the cluster."}</p>`;
  const card = query.card === undefined ? null : Number(query.card);
  return html`<${Top} view=${view} query=${query} sums=${sums} />
    ${store.problems.map((text) => html`<p class="problem" role="alert">${text}</p>`)}
    <div class="columns ${view === "cards" ? "with-side" : ""}">
      <main id="main" tabindex="-1"><${View} view=${view} query=${query} nodes=${nodes} input=${input} /></main>
      ${view === "cards" && html`<${Aside} pending=${store.pending} fits=${store.fits} trend=${store.trend} />`}
    </div>
    ${drawn && html`<${Drawer} name=${query.node} node=${store.nodes.get(query.node)} card=${card} query=${query} live=${store.about.live} />`}`;
}

root.textContent = "";
render(html`<${App} />`, root);
connect();
