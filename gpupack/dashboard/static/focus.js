// Gives a card the focus, as soon as its row is in the document, and again while rows still move about.
// Ends when somebody puts the focus elsewhere; returns what gives it up.

const FRAMES = 30;

export function focusCard(node, card) {
  const id = `card-${node}-${card}`;
  let left = FRAMES, frame = 0, before = document.activeElement;
  const look = () => {
    const now = document.activeElement;
    if (now !== before && now !== document.body && now.id !== id) return;
    before = now;
    if (now.id !== id) document.getElementById(id)?.focus({ preventScroll: true });
    left -= 1;
    if (left) frame = requestAnimationFrame(look);
  };
  look();
  return () => cancelAnimationFrame(frame);
}
