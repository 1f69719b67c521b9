// One node with its cards and their pods, beside the page.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.module.js";
import { Bar } from "./bar.js";
import { focusCard } from "./focus.js";
import { OK, UNHEALTHY, cardOf, gib, words } from "./model.js";
import { go } from "./route.js";
import { Telemetry, useTelemetry } from "./telemetry.js";

const SHARES = {
  allocated: "", assigned: "not started yet", unknown: "card not known", ending: "ending",
};

// What holds a pod to its share.
const HELD = {
  driver: ["driver", "The driver holds it to what it was promised"],
  mps: ["MPS", "CUDA MPS holds it to what it was promised"],
  accounted: ["none", "Nothing holds it to its share: use beyond it is counted"],
};

// Asked again whenever the node's record changes: pods come and go with it.
function useDetail(name, node) {
  const [detail, setDetail] = useState(null);
  useEffect(() => setDetail(null), [name]);
  useEffect(() => {
    const stop = new AbortController();
    fetch(`api/node?name=${encodeURIComponent(name)}`, { signal: stop.signal })
      .then((answer) => answer.json())
      .then(setDetail)
      .catch((error) => { if (error.name !== "AbortError") setDetail({ error: String(error) }); });
    return () => stop.abort();
  }, [name, node]);
  return detail;
}

function Pods({ pods, unit, size }) {
  if (!pods.length) return null;
  return html`<table class="pods">
    <thead><tr><th scope="col">Pod</th><th scope="col" class="n">Promised</th><th scope="col" class="n">Used</th>
      <th scope="col" class="n">Limit</th></tr></thead>
    <tbody>${pods.map((pod) => html`<tr key=${pod.uid}>
      <th scope="row"><span class="space">${pod.namespace && `${pod.namespace}/`}</span>${pod.name || `UID ${pod.uid}`}
        ${SHARES[pod.share] && html` <em>${SHARES[pod.share]}</em>`}
        ${size > 0 && html`<span class="mini" aria-hidden="true"><span style=${{ width: `${(100 * pod.units) / size}%` }}></span>
          ${pod.used != null && html`<i style=${{ left: `${Math.min(100, (100 * pod.used) / unit / size)}%` }}></i>`}</span>`}</th>
      <td class="n">${gib(pod.units, unit)}${pod.compute > 0 && `, ${pod.compute} %`}</td>
      <td class="n ${pod.used > pod.units * unit ? "over" : ""}">${pod.used == null ? "–" : gib(pod.used, 1)}</td>
      <td class="n" title=${HELD[pod.held]?.[1]}>${HELD[pod.held]?.[0] ?? "–"}</td>
    </tr>`)}</tbody></table>`;
}

function CardPart({ node, row, detail, telemetry, chosen, position, pick }) {
  const card = cardOf(node, row);
  const ref = useRef(null);
  useEffect(() => { if (chosen) ref.current?.scrollIntoView({ block: "nearest" }); }, [chosen]);
  return html`<section class="part ${chosen ? "chosen" : ""}" ref=${ref} aria-label=${words(node, card)}>
    <h3><button type="button" onClick=${pick} aria-pressed=${chosen}>Card ${card.index}</button>
      ${card.state !== OK && html`<span class="badge">${card.state === UNHEALTHY ? "unhealthy" : "cordoned"}</span>`}
      <span class="muted">${`${gib(card.allocated + card.overuse + card.external, node.unit)} of ${gib(card.size, node.unit)} GiB, ${
        card.state === OK && node.open ? `${gib(card.free, node.unit)} free` : "takes no pods"}${
        detail?.compute ? `, ${detail.compute} of ${detail.compute_limit} % of its compute promised` : ""}`}</span></h3>
    <${Bar} node=${node} card=${card} />
    ${(card.overuse > 0 || card.external > 0) && html`<p class="note">${`${gib(card.overuse + card.external, node.unit)} GiB are used ${
      card.external === 0 ? "beyond what pods were promised" : card.overuse === 0 ? "by processes that belong to no pod of gpupack" : "beyond what pods were promised, in part by processes of no pod"}.`}</p>`}
    ${chosen && detail?.uuid && html`<p class="note"><code>${detail.uuid}</code>${detail.model && ` · ${detail.model}`}</p>`}
    ${detail && html`<${Pods} pods=${detail.pods} unit=${node.unit} size=${card.size} />`}
    ${detail?.uuid && html`<${Telemetry} telemetry=${telemetry} uuid=${detail.uuid} />`}
  </section>`;
}

export function Drawer({ node, name, card, query, live }) {
  const heading = useRef(null);
  const detail = useDetail(name, node);
  const telemetry = useTelemetry(name, live);
  const close = () => {
    // Whoever came with the keyboard goes on where they were, once the drawer with the focus is gone.
    addEventListener("hashchange", () => setTimeout(() => focusCard(name, card ?? 0)), { once: true });
    go("cards", { ...query, node: "", card: "" });
  };
  useEffect(() => heading.current?.focus({ preventScroll: true }), [name]);
  useEffect(() => {
    const onKey = (event) => { if (event.key === "Escape") { event.preventDefault(); close(); } };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
  return html`<aside class="drawer" role="dialog" aria-modal="false" aria-labelledby="drawer-title">
    <header>
      <h2 id="drawer-title" tabindex="-1" ref=${heading}>${name}</h2>
      <button type="button" class="close" onClick=${close} aria-label="Close">✕</button>
    </header>
    ${!node && html`<p class="empty">This node is gone, or publishes no cards.</p>`}
    ${node && html`<div class="body">
      <p class="facts">${node.status}${node.models.length > 0 && ` · ${node.models.join(", ")}`}
        ${node.unit > 0 && node.unit !== 1024 && ` · units of ${node.unit} MiB`}</p>
      ${node.remark && html`<p class="problem">${node.remark}</p>`}
      ${node.cards.map((row, position) => html`<${CardPart} key=${position} node=${node} row=${row} position=${position}
        detail=${detail?.cards?.[position]} telemetry=${telemetry} chosen=${card === position}
        pick=${() => go("cards", { ...query, node: name, card: position })} />`)}
      ${detail?.unplaced?.length > 0 && html`<section class="part"><h3>On no card that is known</h3>
        <${Pods} pods=${detail.unplaced} unit=${node.unit} size=${0} /></section>`}
      <details><summary>Labels</summary><dl>${Object.entries(node.labels).map(([key, value]) =>
        html`<div><dt>${key}</dt><dd>${value || "(empty)"}</dd></div>`)}</dl></details>
      ${telemetry?.error && html`<p class="note">What the cards do is not known: ${telemetry.error}</p>`}
      ${detail?.error && html`<p class="problem">Its pods cannot be shown: ${detail.error}</p>`}
    </div>`}
  </aside>`;
}
