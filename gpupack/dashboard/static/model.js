// From records to what is drawn: names of fields, sums, filters, groups. No DOM here.

export const OK = 0, UNHEALTHY = 1, CORDONED = 2;

export function cardOf(node, row) {
  const [index, size, allocated, overuse, external, free, state, model, pods] = row;
  return { index, size, allocated, overuse, external, free, state, model: node.models[model] ?? "", pods };
}

// Amounts: units of the node in GiB, with one decimal only where there is one.
export function gib(units, unit) {
  return number((units * unit) / 1024);
}

export function number(amount) {
  const rounded = Math.round(amount * 10) / 10;
  return rounded.toLocaleString("en", { maximumFractionDigits: Math.abs(rounded) >= 100 ? 0 : 1 });
}

export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "–";
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

export function age(since, now = Date.now()) {
  const seconds = Math.max(0, (now - new Date(since)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

// What a card says in words, for labels and tooltips.
export function words(node, card) {
  const amount = (units) => `${gib(units, node.unit)} GiB`;
  const parts = [`card ${card.index}`];
  if (card.model) parts.push(card.model);
  if (card.state === UNHEALTHY) parts.push("unhealthy");
  if (card.state === CORDONED) parts.push("cordoned");
  parts.push(`${amount(card.allocated)} of ${amount(card.size)} promised`);
  if (card.overuse) parts.push(`${amount(card.overuse)} used beyond that`);
  if (card.external) parts.push(`${amount(card.external)} used by others`);
  if (card.state === OK) parts.push(node.open ? `${amount(card.free)} free` : "the node takes no pods");
  parts.push(plural(card.pods, "pod"));
  return parts.join(", ");
}

export function zero() {
  return {
    nodes: 0, cards: 0, size: 0, allocated: 0, overuse: 0, free: 0, whole: 0, wholeFree: 0, largest: 0,
    unhealthy: 0, cordoned: 0, closed: 0,
  };
}

function count(node) {
  const sums = zero();
  sums.nodes = 1;
  sums.closed = node.open ? 0 : 1;
  for (const [, size, allocated, overuse, external, free, state] of node.cards) {
    sums.cards += 1;
    sums.size += size * node.unit;
    sums.allocated += allocated * node.unit;
    sums.overuse += (overuse + external) * node.unit;
    sums.free += free * node.unit;
    if (free === size && size) { sums.whole += 1; sums.wholeFree += size * node.unit; }
    sums.largest = Math.max(sums.largest, free * node.unit);
    if (state === UNHEALTHY) sums.unhealthy += 1;
    if (state === CORDONED) sums.cordoned += 1;
  }
  return sums;
}

// What one node has, in MiB; counted once, for a record never changes: another takes its place.
export function sumsOf(node) {
  node.sums = node.sums ?? count(node);
  return node.sums;
}

// Adds a node to sums.
export function add(sums, node) {
  const own = sumsOf(node);
  for (const name in own) sums[name] = name === "largest" ? Math.max(sums.largest, own.largest) : sums[name] + own[name];
  return sums;
}

// Free memory that no pod of a whole card can have, of all that is free.
export function fragmentation(sums) {
  return sums.free ? (sums.free - sums.wholeFree) / sums.free : 0;
}

const has = (node, test) => node.cards.some(test);

export const SHOWS = {
  "": ["all nodes", () => true],
  whole: ["a whole card free", (node) => node.open && has(node, ([, size, , , , free]) => size && free === size)],
  part: ["cards shared in part", (node) => has(node, ([, size, promised, , , free]) => promised && free && free < size)],
  full: ["nothing free", (node) => !has(node, ([, , , , , free]) => free)],
  beyond: ["used beyond promise", (node) => has(node, ([, , , beyond, foreign]) => beyond || foreign)],
  trouble: ["trouble", (node) => !node.open || node.remark || has(node, ([, , , , , , state]) => state !== OK)],
};

function text(node) {
  if (node.text === undefined) {
    const labels = Object.entries(node.labels).map(([key, value]) => `${key}=${value}`);
    node.text = [node.name, node.status, node.remark, ...node.models, ...labels].join("\n").toLowerCase();
  }
  return node.text;
}

// `found`: names of nodes that have a pod of that name, which the records of nodes do not say.
export function filtered(nodes, { q = "", show = "", fits = "" }, found = null) {
  const tokens = q.toLowerCase().split(/\s+/).filter(Boolean);
  const [, shown] = SHOWS[show] ?? SHOWS[""];
  const needed = Number(fits) || 0;
  const says = (node, token) => text(node).includes(token);
  const passes = (node) => tokens.every((token) => (token[0] === "!" ? token.length === 1 || !says(node, token.slice(1)) : says(node, token)));
  return nodes.filter((node) => (passes(node) || found?.has(node.name)) && shown(node)
    && (!needed || (node.open && has(node, ([, , , , , free]) => (free * node.unit) / 1024 >= needed))));
}

const collator = new Intl.Collator("en", { numeric: true });

// Nodes come by name; equals stay in that order.
export const SORTS = {
  "": ["name", null],
  free: ["most free", (a, b) => sumsOf(b).free - sumsOf(a).free],
  promised: ["most promised", (a, b) => sumsOf(b).allocated - sumsOf(a).allocated],
};

export function groupKey(node, group) {
  if (group === "model") return node.models.length ? node.models.join(" + ") : "model not published";
  if (group === "state") return node.status;
  if (group.startsWith("label:")) return node.labels[group.slice(6)] ?? "(without the label)";
  return "";
}

export function grouped(nodes, group) {
  if (!group) return [{ key: "", nodes }];
  const groups = new Map();
  for (const node of nodes) {
    const key = groupKey(node, group);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(node);
  }
  return [...groups].map(([key, members]) => ({ key, nodes: members }))
    .sort((a, b) => collator.compare(a.key, b.key));
}

// Label keys that group: more than one node to a value, or few nodes in all.
export function labelKeys(nodes) {
  const values = new Map();
  for (const node of nodes) {
    for (const [key, value] of Object.entries(node.labels)) {
      if (!values.has(key)) values.set(key, new Set());
      values.get(key).add(value);
    }
  }
  return [...values].filter(([, seen]) => seen.size <= Math.max(12, nodes.length / 4)).map(([key]) => key).sort();
}
