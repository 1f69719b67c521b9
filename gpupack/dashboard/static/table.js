// The same cards as a table: for screen readers, for copying, for exact figures.

import { html, useEffect, useState } from "./vendor/htm-preact.module.js";
import { cardOf, gib } from "./model.js";
import { href } from "./route.js";

const ROWS = 100; // on one page
const STATES = ["", "unhealthy", "cordoned"];

export function CardTable({ nodes, query }) {
  const [page, setPage] = useState(0);
  useEffect(() => setPage(0), [query.q, query.show, query.fits, query.sort]);
  const rows = nodes.flatMap((node) => node.cards.map((row, position) => ({ node, position, card: cardOf(node, row) })));
  const pages = Math.max(1, Math.ceil(rows.length / ROWS));
  const at = Math.min(page, pages - 1);
  const turn = (to) => { setPage(to); scrollTo({ top: 0 }); };
  return html`<div>
    <div class="scroll"><table>
      <caption class="sr">Cards, amounts in GiB, page ${at + 1} of ${pages}</caption>
      <thead><tr>
        ${["Node", "Card", "Model", "Size", "Promised", "Beyond", "By others", "Free", "Pods", "State"].map((head, column) =>
          html`<th scope="col" class=${column === 1 || (column > 2 && column < 9) ? "n" : ""}>${head}</th>`)}
      </tr></thead>
      <tbody>${rows.slice(at * ROWS, (at + 1) * ROWS).map(({ node, position, card }) => html`<tr key=${`${node.name}/${position}`}>
        <th scope="row"><a href=${href("cards", { ...query, node: node.name, card: position })}>${node.name}</a></th>
        <td class="n">${card.index}</td><td>${card.model}</td>
        ${[card.size, card.allocated, card.overuse, card.external, card.free].map((units) => html`<td class="n">${gib(units, node.unit)}</td>`)}
        <td class="n">${card.pods}</td>
        <td>${[STATES[card.state], node.status === "Ready" ? "" : node.status].filter(Boolean).join(", ")}</td>
      </tr>`)}</tbody>
    </table></div>
    ${pages > 1 && html`<nav class="pages" aria-label="Pages of the table">
      <button type="button" disabled=${at === 0} onClick=${() => turn(at - 1)}>Before</button>
      <span>page ${at + 1} of ${pages}</span>
      <button type="button" disabled=${at === pages - 1} onClick=${() => turn(at + 1)}>Next</button>
    </nav>`}
  </div>`;
}
