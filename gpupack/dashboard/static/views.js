// Pods that wait, what fits now, and the queue's tenants.

import { html, useEffect, useState } from "./vendor/htm-preact.module.js";
import { age, gib, number, plural } from "./model.js";
import { href } from "./route.js";

function useMinute() {
  const [, tick] = useState(0);
  useEffect(() => {
    const each = setInterval(() => tick((count) => count + 1), 30000);
    return () => clearInterval(each);
  }, []);
}

// What would let it start is asked only where somebody wants to know: each way is tried on the cluster.
function Ways({ namespace, name }) {
  const [found, setFound] = useState(null);
  const ask = (event) => {
    if (!event.target.open || found) return;
    const query = new URLSearchParams({ namespace, pod: name });
    fetch(`api/why?${query}`).then((answer) => answer.json()).then(setFound).catch((error) => setFound({ error: String(error) }));
  };
  return html`<details class="ways" onToggle=${ask}><summary>What would let it start?</summary>
    ${!found && html`<p>Trying it on the cluster.</p>`}
    ${found?.error && html`<p>${found.error}</p>`}
    ${found?.ways_out && (found.ways_out.length ? html`<ul>${found.ways_out.map((way) => html`<li>${way.text}</li>`)}</ul>`
      : html`<p>${found.state === "fits" ? "Nothing is in its way." : "Nothing that gpupack can compute."}</p>`)}
  </details>`;
}

export function Pending({ pending, short }) {
  useMinute();
  const { pods, more } = pending;
  if (!pods.length) return html`<p class="empty">No pod waits for a card.</p>`;
  const shown = short ? pods.slice(0, 4) : pods;
  return html`<div>
    <ul class="pending">${shown.map((pod) => html`<li key=${`${pod.namespace}/${pod.name}`}>
      <div class="line"><strong><span class="space">${pod.namespace}/</span>${pod.name}</strong>
        ${pod.asked && html`<span class="chip still">${pod.asked}</span>`}
        ${pod.gang && html`<span class="chip still">gang ${pod.gang}</span>`}
        ${pod.queue && html`<span class="chip still">queue ${pod.queue}${pod.position ? ` · ${pod.position}` : ""}${short ? "" : ` · ${pod.reason}`}</span>`}
        ${!short && ["gated", "refused", "fits"].includes(pod.state) && html`<span class="chip still">${pod.state === "fits" ? "fits now" : pod.state}</span>`}
        <span class="muted">${pod.since && html`<time datetime=${pod.since} title=${pod.since}>${age(pod.since)}</time>`}</span></div>
      <p>${pod.text}</p>
      ${!short && html`<${Fragments} pod=${pod} />`}
    </li>`)}</ul>
    ${short && pods.length + more > shown.length && html`<p><a href=${href("pending")}>${plural(pods.length + more, "pod")} in all</a></p>`}
    ${!short && more > 0 && html`<p class="muted">and ${plural(more, "pod")} more</p>`}
  </div>`;
}

function Fragments({ pod }) {
  return html`${pod.nodes.length > 0 && html`<ul class="why">${pod.nodes.map((group) => html`<li>${group}</li>`)}</ul>`}
    ${pod.notes.map((note) => html`<p>${note}</p>`)}
    ${pod.scheduler && html`<p>kube-scheduler: ${pod.scheduler}</p>`}
    ${(pod.state === "pending" || pod.state === "gated") && html`<${Ways} namespace=${pod.namespace} name=${pod.name} />`}`;
}

const NAMED = 5; // nodes

function told(found) {
  const { pods, tolerating_pods: tainted, nodes, asked } = found;
  const names = nodes.slice(0, NAMED).map((node) => `${node.node} (${node.pods})`);
  const where = names.length ? `: ${names.join(", ")}${nodes.length > NAMED ? ", ..." : ""}` : "";
  const counted = pods || tainted;
  const more = pods && tainted ? `, and ${tainted} more` : "";
  return `${plural(counted, "pod")} of ${asked} ${counted === 1 ? "fits" : "fit"} now${more}${tainted ? ", if they tolerate taints" : ""}, on ${plural(nodes.length, "node")}${where}`;
}

// How many pods of a size of one's own fit: asked when the form is sent.
function OwnSize({ unit }) {
  const [found, setFound] = useState(null);
  const ask = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const percent = form.get("what") === "percent";
    const amount = Number(form.get("amount"));
    const units = percent ? amount : Math.ceil((amount * 1024) / unit);
    const query = new URLSearchParams({ units, ...(percent ? { percent: 1 } : {}) });
    for (const name of ["cards", "model", "compute"]) query.set(name, form.get(name));
    fetch(`api/fit?${query}`).then((answer) => answer.json()).then(setFound).catch((error) => setFound({ error: String(error) }));
  };
  return html`<form class="own" onSubmit=${ask} aria-label="Pods of a size of your own">
    <label><span class="label">Memory</span><input name="amount" type="number" min="1" step="any" value="8" required /></label>
    <label><span class="sr">in</span><select name="what"><option value="gib">GiB</option><option value="percent">% of a card</option></select></label>
    <label><span class="label">Cards</span><input name="cards" type="number" min="1" max="64" value="1" required /></label>
    <label title="Percent of the compute of each card"><span class="label">Compute</span><input name="compute" type="number" min="0" max="100" value="0" required /></label>
    <label><span class="label">Model</span><input name="model" placeholder="*A100*, !T4" autocomplete="off" spellcheck=${false} /></label>
    <button type="submit">Count</button>
    <output aria-live="polite">${found && (found.error ?? told(found))}
      ${found?.notes?.map((note) => html`<span class="muted"> ${note}.</span>`)}</output>
  </form>`;
}

export function Fits({ fits, short }) {
  const own = short ? "" : html`<${OwnSize} unit=${fits[0]?.unit ?? 1024} />`;
  return html`<div>${own}<${Sizes} fits=${fits} short=${short} /></div>`;
}

function Sizes({ fits, short }) {
  if (!fits.length) return html`<p class="empty">No card has anything free.</p>`;
  const shown = short ? pick(fits, 7) : fits;
  const most = Math.max(...shown.map((fit) => fit.pods), 1);
  return html`<div class="scroll"><table class="fits">
    <caption class=${short ? "sr" : ""}>How many pods of one card would fit now, each size by itself</caption>
    <thead><tr><th scope="col" class="n">GiB</th><th scope="col">Pods that fit</th><th scope="col" class="n">Nodes</th></tr></thead>
    <tbody>${shown.map((fit) => html`<tr key=${`${fit.unit} ${fit.units}`}>
      <th scope="row" class="n"><a href=${href("cards", { fits: (fit.units * fit.unit) / 1024 })}
        title="Show the nodes">${gib(fit.units, fit.unit)}</a>${fit.largest && html`<span class="sr"> the largest that fits</span>`}</th>
      <td><span class="meter"><span style=${{ width: `${(100 * fit.pods) / most}%` }}></span></span>
        <span>${fit.pods.toLocaleString("en")}</span></td>
      <td class="n">${fit.nodes.toLocaleString("en")}</td>
    </tr>`)}</tbody></table></div>`;
}

// Some of many, the first and the last among them.
function pick(all, count) {
  if (all.length <= count) return all;
  return Array.from({ length: count }, (_, at) => all[Math.round((at * (all.length - 1)) / (count - 1))]);
}

export function Queues({ queues }) {
  useMinute();
  if (!queues.there) return html`<p class="empty">${queues.text}</p>`;
  const largest = Math.max(1, ...queues.queues.map((queue) => Math.max(queue.used, queue.nominal ?? 0)));
  const width = (amount) => ({ width: `${(100 * Math.max(0, amount)) / largest}%` });
  return html`<div>
    ${[queues.trouble && `Nothing is admitted: ${queues.trouble}`, queues.fault && `The newest configuration is not in force: ${queues.fault}`,
      queues.warning].filter(Boolean).map((text) => html`<p class="problem">${text}</p>`)}
    <div class="scroll"><table class="queues">
      <caption class="sr">Tenants of the queue; amounts in units of GPU memory</caption>
      <thead><tr>${["Queue", "Used of its quota", "Borrowed", "Lent", "Weight", "Running", "Waiting", "Oldest", ""].map((head, column) =>
        html`<th scope="col" class=${column > 1 && column < 8 ? "n" : ""}>${head}</th>`)}</tr></thead>
      <tbody>${queues.queues.map((queue) => html`<tr key=${queue.name}>
        <th scope="row">${queue.name}${queue.cohort && html` <span class="space">${queue.cohort}</span>`}</th>
        <td><span class="meter wide"><span style=${width(queue.used - queue.borrowed)}></span><span class="borrowed"
          style=${width(queue.borrowed)}></span></span><span>${queue.used}${queue.nominal == null ? "" : ` / ${queue.nominal}`}</span></td>
        <td class="n">${queue.borrowed}</td><td class="n">${queue.lent}</td><td class="n">${number(queue.weight)}</td>
        <td class="n">${queue.running}</td><td class="n">${queue.waiting}</td>
        <td class="n">${queue.waiting ? age(Date.now() - queue.oldestWaitS * 1000) : "–"}</td>
        <td>${queue.stop === "None" ? "" : queue.stop}</td>
      </tr>`)}</tbody></table></div>
    ${queues.pods.length > 0 && html`<h2>Who waits</h2><ul class="pending">${queues.pods.map((pod) => html`<li key=${`${pod.namespace}/${pod.name}`}>
      <div class="line"><strong><span class="space">${pod.namespace}/</span>${pod.name}</strong>
        <span class="chip still">${pod.queue || "no queue"}${pod.position ? ` · ${pod.position}` : ""}</span>
        <span class="muted">${pod.reason}</span></div><p>${pod.message}</p></li>`)}</ul>
      ${queues.more > 0 && html`<p class="muted">and ${plural(queues.more, "pod")} more</p>`}`}
  </div>`;
}
