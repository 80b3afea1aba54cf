// Focus on a page, for tests: elements that the tab key reaches, and their looks there.
window.keyboard ??= (() => {
  const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex]";
  const TARGET_MIN = 24; // pixels, by WCAG 2.2
  const OUTLINE_MIN = 2;
  const scope = () => document.querySelector("dialog[open]") || document;
  const words = (text) => (text || "").replace(/\s+/g, " ").trim();
  const name = (one) => words(one.ariaLabel || (one.labels?.[0] || one).innerText || one.name);
  const shown = (one) => one.checkVisibility({ visibilityProperty: true });
  const described = (one) => `<${one.localName}> ${name(one)}`;

  /** Elements that the tab key reaches, in their order; of radio buttons the chosen one. */
  const stops = () =>
    [...scope().querySelectorAll(CONTROLS)].filter((one) => !one.disabled && one.tabIndex >= 0 && shown(one) && (one.type !== "radio" || one.checked));

  /** The last element of these that can be used: dialogs come last. */
  const last = (elements) => elements.filter((one) => !one.disabled && shown(one) && scope().contains(one)).at(-1);
  const button = (label) => last([...document.querySelectorAll("button, a")].filter((one) => name(one) === label || words(one.innerText) === label));
  const field = (selector) => last([...document.querySelectorAll(selector)]);

  /** How often the tab key has to be pressed to get from the focus to the element; negative: with the shift key. */
  function distance(element) {
    const all = stops(), at = all.indexOf(element), active = document.activeElement;
    const here = all.indexOf(active);
    if (here >= 0) return at - here;
    const before = active === document.body ? 0 : all.filter((one) => one.compareDocumentPosition(active) & Node.DOCUMENT_POSITION_FOLLOWING).length;
    return at >= before ? at - before + 1 : at - before;
  }

  /** What is wrong with the focus, or the element that has it. */
  function flaws(one) {
    const style = getComputedStyle(one), { top, bottom, left, right } = one.getBoundingClientRect(), found = [];
    if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < OUTLINE_MIN) found.push("its focus cannot be seen");
    if (bottom <= 0 || top >= innerHeight || right <= 0 || left >= innerWidth) found.push("it is outside of the window");
    return found.map((flaw) => `${described(one)}: ${flaw}`);
  }

  let walk = null;
  document.addEventListener("focusin", ({ target }) => walk?.push([target, flaws(target)]));

  /** Starts to record what gets the focus. */
  function start() {
    walk = [];
    return stops().length;
  }
  /** Number of elements that have not got the focus yet. */
  const left = () => {
    const reached = new Set(walk.map(([one]) => one));
    return stops().filter((one) => !reached.has(one)).length;
  };
  /** Elements that did not get the focus in their order, and flaws of those that did. */
  function end() {
    const all = stops();
    const reached = [...new Set(walk.map(([one]) => one))].filter((one) => all.includes(one));
    const first = Math.max(0, all.indexOf(reached[0]));
    const wanted = [...all.slice(first), ...all.slice(0, first)];
    const wrong = wanted.filter((one, at) => reached[at] !== one).map((one) => `${described(one)}: not reached in its order`);
    const found = walk.flatMap(([, flawed]) => flawed);
    walk = null;
    return [...new Set([...wrong, ...found])];
  }

  /** Controls that are cut off, covered or too small to be hit. */
  function unreachable() {
    const found = [];
    const controls = [...scope().querySelectorAll("button, input, select, textarea, .tabs a")].filter(shown);
    for (const one of controls) {
      one.scrollIntoView({ block: "center" });
      const { top, bottom, left, right, width, height } = one.getBoundingClientRect();
      const hit = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
      const small = ["radio", "checkbox"].includes(one.type) ? one.labels[0].getBoundingClientRect() : { width, height };
      if (left < 0 || right > document.documentElement.clientWidth || !(hit && (one.contains(hit) || hit.contains(one)))) found.push(`${described(one)}: cut off`);
      if (small.width < TARGET_MIN || small.height < TARGET_MIN) found.push(`${described(one)}: too small`);
    }
    const dialog = document.querySelector("dialog[open]");
    if (dialog && dialog.scrollWidth > dialog.clientWidth) found.push("the dialog scrolls sideways");
    return found;
  }
  return { button, distance, end, field, left, name, start, stops, unreachable };
})();
