// What the page knows: everything once, and then what changes, as server-sent events.

export const store = {
  version: 0,        // grows with every message
  ready: false,      // a first message is there
  connected: false,
  lost: null,        // since when the connection is gone, milliseconds
  nodes: new Map(),  // by name
  about: { source: "", version: "", live: true },
  problems: [],
  pending: { pods: [], more: 0 },
  fits: [],
  queues: { there: false, text: "", queues: [], pods: [] },
  trend: [],
};

const listeners = new Set();

const collator = new Intl.Collator("en", { numeric: true });
let names = null; // of all nodes in order, null when one came or went

// All nodes by name.
export function nodesInOrder() {
  names = names ?? [...store.nodes.keys()].sort(collator.compare);
  return names.map((name) => store.nodes.get(name));
}

export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// How long the last messages took from their arrival to the screen, in milliseconds; for the benchmark.
export const timings = [];
globalThis.gpupackTimings = timings;

let due = false;

// However much comes, the page is drawn once a frame, and less often while nobody sees it: then there are no frames.
function changed(began = performance.now()) {
  store.version += 1;
  if (due) return;
  due = true;
  const draw = () => {
    if (!due) return;
    due = false;
    clearTimeout(late);
    for (const listener of listeners) listener();
    setTimeout(() => {
      timings.push({ began, took: performance.now() - began });
      if (timings.length > 500) timings.shift();
    });
  };
  const late = setTimeout(draw, 250);
  requestAnimationFrame(draw);
}

const PARTS = ["about", "problems", "pending", "fits", "queues"];
const POINTS = 4000;

function take(message) {
  for (const part of PARTS) if (part in message) store[part] = message[part];
  for (const node of message.nodes ?? []) {
    if (!store.nodes.has(node.name)) names = null;
    store.nodes.set(node.name, node);
  }
  for (const name of message.gone ?? []) if (store.nodes.delete(name)) names = null;
  if (message.points) {
    store.trend = store.trend.concat(message.points).slice(-POINTS);
  }
}

let source = null;
let leaving = 0;

const HIDDEN = 60000; // milliseconds that a page in the background keeps its stream

function disconnect() {
  source?.close();
  source = null;
}

function open() {
  disconnect();
  source = new EventSource("api/events");
  source.addEventListener("whole", (event) => {
    const began = performance.now();
    const message = JSON.parse(event.data);
    store.nodes = new Map();
    names = null;
    store.trend = message.trend;
    take(message);
    store.ready = true;
    store.connected = true;
    store.lost = null;
    changed(began);
  });
  source.addEventListener("news", (event) => {
    const began = performance.now();
    take(JSON.parse(event.data));
    changed(began);
  });
  source.addEventListener("error", (event) => {
    store.connected = false;
    store.lost = store.lost ?? Date.now();
    changed();
    // The browser tries again by itself, except after an answer that was refused.
    if (event.target.readyState === EventSource.CLOSED) setTimeout(() => { if (source === event.target) open(); }, 5000);
  });
}

// A browser opens six connections to one server: pages that nobody sees must not keep theirs for ever.
export function connect() {
  open();
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  document.addEventListener("visibilitychange", () => {
    clearTimeout(leaving);
    if (document.hidden) leaving = setTimeout(disconnect, HIDDEN);
    else if (source === null) open();
  });
}
