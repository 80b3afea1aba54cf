// Keeps the focus when what has it is disabled or removed, so that the keyboard goes on from there.

const USABLE = "h1, a[href], button:enabled, input:enabled, select:enabled, textarea:enabled, [tabindex='0']";
const PATIENCE_MS = 2000; // a button is disabled while its act runs
const FRAME_MS = 50; // the browser takes the focus from what is disabled with the next frame

let place = []; // what has the focus, and the elements around it
let timer = 0, patience = 0;

function next() {
  const part = place.slice(1).find((one) => one.isConnected && one.querySelector(USABLE));
  part?.querySelector(USABLE).focus();
}

function giveBack() {
  timer = 0;
  clearTimeout(patience);
  const [control] = place;
  const active = document.activeElement;
  // A busy browser draws its next frame later: until then a disabled control still has the focus.
  if (!control || (active && active !== document.body && active !== control)) return;
  if (!control.isConnected) next();
  else if (control.disabled) patience = setTimeout(next, PATIENCE_MS);
  else control.focus();
}

/** Keeps the focus within this element from now on. */
export function keepFocus(app) {
  addEventListener("focusin", ({ target }) => {
    clearTimeout(patience);
    place = [];
    for (let one = target; one && one !== document.body; one = one.parentElement) place.push(one);
  });
  addEventListener("focusout", ({ target }) => {
    queueMicrotask(() => { // once what removes it has done so
      if (place[0] === target && target.isConnected && !target.disabled) place = []; // the viewer has left it
    });
  });
  new MutationObserver(() => (timer ||= setTimeout(giveBack, FRAME_MS))).observe(app, { subtree: true, childList: true, attributes: true, attributeFilter: ["disabled"] });
}
