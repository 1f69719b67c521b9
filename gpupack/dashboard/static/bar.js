// One card as a bar: promised, used beyond, foreign, free; unhealthy and cordoned by pattern and by word.

import { html } from "./vendor/htm-preact.module.js";
import { CORDONED, OK, UNHEALTHY, gib } from "./model.js";

const MARKS = { [UNHEALTHY]: "unhealthy", [CORDONED]: "cordoned" };
const STATES = { [OK]: "", [UNHEALTHY]: "unhealthy", [CORDONED]: "cordoned" };

const width = (part, whole) => ({ width: `${whole ? (100 * part) / whole : 0}%` });

// A bar is as long as its card is large beside the largest one, and long enough to be seen and clicked.
const SHORTEST = 30; // percent

export function Bar({ node, card, most = 0 }) {
  const long = most ? Math.max(SHORTEST, (100 * card.size * node.unit) / most) : 100;
  const closed = card.state === OK && !node.open ? "closed" : "";
  return html`<span class="bar ${STATES[card.state]} ${closed}" aria-hidden="true" style=${{ width: `${long}%` }}>
    ${card.allocated > 0 && html`<span class="promised" style=${width(card.allocated, card.size)}></span>`}
    ${card.overuse > 0 && html`<span class="beyond" style=${width(card.overuse, card.size)}></span>`}
    ${card.external > 0 && html`<span class="foreign" style=${width(card.external, card.size)}></span>`}
  </span>`;
}

export function Figures({ node, card }) {
  const used = card.allocated + card.overuse + card.external;
  return html`<span class="figures" aria-hidden="true">
    <span>${gib(used, node.unit)}${card.state === OK && `/${gib(card.size, node.unit)}`}</span>
    ${card.state !== OK && html`<span class="mark">${MARKS[card.state]}</span>`}
    ${card.state === OK && (card.overuse > 0 || card.external > 0)
      && html`<span class="mark over">+${gib(card.overuse + card.external, node.unit)}</span>`}
  </span>`;
}

export function Legend() {
  const kinds = [
    ["promised", "promised to pods"], ["beyond", "used beyond that"], ["foreign", "used by others"],
    ["free", "free"], ["unhealthy", "unhealthy"], ["cordoned", "cordoned"],
  ];
  return html`<ul class="legend" aria-label="What the patterns mean">
    ${kinds.map(([kind, text]) => html`<li><span class="swatch ${kind}" aria-hidden="true"></span>${text}</li>`)}
  </ul>`;
}
