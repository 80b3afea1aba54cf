// Parts of pages.

import { Refusal, follow } from "./api.js";
import { clockTime } from "./text.js";

const { h, nextTick, onMounted, onUnmounted, ref, shallowReactive, useId } = Vue;
const PAUSE_MAX = 60;
const RECONNECT_SECONDS = 0.2; // the service has ended the answer: it restarts, or the session is over
const LATE_SECONDS = 35; // numbers that change arrive every 2 s; of those that do not, the age arrives every 30 s
const GONE = [401, 403, 404]; // the caller may not see it any more, or it is not there

/** What a page shows after an error: nothing of what may not be seen any more. */
const afterError = (error) => (GONE.includes(error.status) ? { error, data: null } : { error });

/** Reads something now and every few seconds while the page is seen; less often while that fails. */
export function usePolled(read, seconds) {
  const state = shallowReactive({ data: null, error: null, refresh: run });
  let timer = 0, pause = seconds, running = false, again = false, stopped = false, reading = null;

  async function run() {
    clearTimeout(timer);
    if (running) {
      again = true;
      reading.abort();
      return;
    }
    running = true;
    reading = new AbortController();
    try {
      const data = await read(reading.signal);
      if (!stopped && !again) Object.assign(state, { data, error: null });
      pause = seconds;
    } catch (error) {
      if (!(error instanceof Refusal) && error.name !== "AbortError") throw error;
      if (stopped || again || error.name === "AbortError") return;
      Object.assign(state, afterError(error));
      pause = Math.max(error.retryAfter || 0, Math.min(pause * 2, PAUSE_MAX));
    } finally {
      running = false;
      if (again && !stopped) {
        again = false;
        run();
      } else if (!stopped && !document.hidden) timer = setTimeout(run, pause * 1000);
    }
  }

  const onVisibility = () => (document.hidden ? clearTimeout(timer) : run());
  onMounted(() => {
    document.addEventListener("visibilitychange", onVisibility);
    run();
  });
  onUnmounted(() => {
    stopped = true;
    clearTimeout(timer);
    reading?.abort();
    document.removeEventListener("visibilitychange", onVisibility);
  });
  return state;
}

/**
 * Follows live numbers while the page is seen; `query` returns what is followed, `take` converts what arrives.
 *
 * `asOf` is the time of the numbers, in seconds, if they are late: the service has not computed newer ones, or the
 * connection is broken.
 */
export function useLive(query, take) {
  const state = shallowReactive({ data: null, error: null, asOf: null, refresh: start });
  let reading = null, timer = 0, pause = 1, valid = 0, clock = 0;

  function onEvent(kind, data) {
    if (kind === "age") {
      if (!state.error) valid = Date.now() / 1000 - data.seconds;
    } else if (kind === "problem") {
      Object.assign(state, afterError(new Refusal(data.status, data, 0)));
    } else {
      Object.assign(state, { data: taken(take, data), error: null });
      valid = Date.now() / 1000;
    }
    tick();
  }
  async function start() {
    stop();
    const mine = (reading = new AbortController());
    try {
      await follow(query(), (kind, data) => {
        if (mine.signal.aborted) return;
        onEvent(kind, data);
        pause = 1;
      }, mine.signal);
      again(mine, RECONNECT_SECONDS);
    } catch (error) {
      if (error.name === "AbortError" || mine.signal.aborted) return;
      if (!(error instanceof Refusal)) throw error;
      Object.assign(state, afterError(error));
      tick();
      again(mine, Math.max(error.retryAfter || 0, pause));
      pause = Math.min(pause * 2, PAUSE_MAX);
    }
  }
  function tick() {
    state.asOf = state.data !== null && (state.error || Date.now() / 1000 - valid > LATE_SECONDS) ? valid : null;
  }
  function again(mine, seconds) {
    if (!mine.signal.aborted && !document.hidden) timer = setTimeout(start, seconds * 1000);
  }
  function stop() {
    clearTimeout(timer);
    reading?.abort();
  }
  const onVisibility = () => (document.hidden ? stop() : start());
  onMounted(() => {
    document.addEventListener("visibilitychange", onVisibility);
    clock = setInterval(tick, 1000);
    start();
  });
  onUnmounted(() => {
    stop();
    clearInterval(clock);
    document.removeEventListener("visibilitychange", onVisibility);
  });
  return state;
}

/** What a page makes of an event.  If that fails it is reported, and the page follows anew. */
function taken(take, data) {
  try {
    return take(data);
  } catch (error) {
    reportError(error);
    throw new Refusal(0, { detail: "The page cannot show what the service sends. It tries again." }, 0);
  }
}

/** A line with the time of live numbers that are late. */
export const lateness = (state) =>
  h("p", { class: "hint", role: "status" }, state.asOf === null ? "" : `As of ${clockTime(state.asOf)}: newer numbers have not arrived.`);

/** Reads something once, and again with `refresh`. */
export function useLoaded(read) {
  const state = shallowReactive({ data: null, error: null, refresh });
  async function refresh() {
    try {
      Object.assign(state, { data: await read(), error: null });
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Refusal)) throw error;
      Object.assign(state, afterError(error));
    }
  }
  onMounted(refresh);
  return state;
}

/** The data that was read, or a note that it is being read, or the reason why it cannot be. */
export const loaded = (state, show) => [
  failure(state.error),
  state.data !== null ? show(state.data) : state.error ? null : h("p", { role: "status" }, "Loading…"),
];

/** An act of the viewer: while it runs, `busy`; then `error` or `done`, a sentence. */
export function useAct() {
  const act = shallowReactive({ busy: false, error: "", done: "", run });

  async function run(work) {
    if (act.busy) return false;
    Object.assign(act, { busy: true, error: "", done: "" });
    try {
      act.done = (await work()) || "";
      return true;
    } catch (error) {
      if (error.name === "AbortError") return false; // the session has ended, or another account is shown
      if (!(error instanceof Refusal)) throw error;
      act.error = error.message;
      return false;
    } finally {
      act.busy = false;
    }
  }
  return act;
}

/** The result of an act, read aloud when it changes. */
export const outcome = (act) => [
  h("p", { class: "error", role: "alert" }, act.error),
  h("p", { class: "done", role: "status" }, act.done),
];

export const failure = (error) => (error ? h("p", { class: "error", role: "alert" }, error.message) : null);

/** A labelled control: `of` is its name, `hint` a line below it. */
export const Field = {
  props: ["label", "hint", "code"],
  setup(props, { slots }) {
    const id = useId();
    return () => {
      const hintId = props.hint ? `${id}-hint` : undefined;
      return h("div", { class: "field" }, [
        h("label", { for: id }, [props.label, props.code ? h("code", props.code) : null]),
        slots.default({ id, "aria-describedby": hintId }),
        props.hint ? h("p", { id: hintId, class: "hint" }, props.hint) : null,
      ]);
    };
  },
};

/** A field with an input: `model` is a reactive object, `name` its member. */
export const input = (model, name, label, { hint, code, tag = "input", options, ...attributes } = {}) =>
  h(Field, { label, hint, code }, {
    default: (bound) =>
      h(
        tag,
        {
          ...bound,
          ...attributes,
          name,
          value: model[name],
          [tag === "select" ? "onChange" : "onInput"]: (event) => {
            model[name] = event.target.value;
          },
        },
        options?.map((one) => h("option", { value: one, selected: one === model[name] }, one === "" ? "(default)" : one)),
      ),
  });

/** Checkboxes: `model[name]` is the list of what is chosen. */
export const choices = (model, name, label, all) =>
  h("fieldset", [
    h("legend", label),
    all.map((one) =>
      h("label", { class: "choice", key: one }, [
        h("input", {
          type: "checkbox", name: `${name}-${one}`, checked: model[name].includes(one),
          onChange: (event) => {
            model[name] = event.target.checked ? [...model[name], one] : model[name].filter((other) => other !== one);
          },
        }),
        one,
      ])),
  ]);

/** Links to the pages of one thing: `tabs` are [tab, label]. */
export const tabLinks = (label, tabs, current, link) =>
  h("nav", { class: "tabs", "aria-label": label },
    tabs.map(([tab, name]) => h("a", { href: link(tab), "aria-current": current === tab ? "page" : undefined }, name)));

/** A secret that is shown once.  Only its label is read aloud by itself. */
export const secret = (label, value) =>
  h("div", { class: "notice" }, [h("p", { role: "status" }, label), h("pre", { tabindex: 0, "aria-label": "Secret" }, value)]);

/** A modal dialog, open as long as it is there. */
export const Dialog = {
  props: ["title"],
  emits: ["close"],
  setup(props, { slots, emit }) {
    const dialog = ref(null);
    const id = useId();
    let before = null;
    onMounted(() => {
      before = document.activeElement;
      dialog.value.showModal();
    });
    onUnmounted(() => nextTick(() => before?.isConnected && before.focus()));
    return () =>
      h("dialog", { ref: dialog, "aria-labelledby": id, onCancel: () => emit("close"), onClose: () => emit("close") }, [
        h("h2", { id }, props.title),
        slots.default(),
      ]);
  },
};

/** A dialog for something that cannot be undone: the name has to be typed, if one is given. */
export const Confirm = {
  props: ["title", "name", "verb", "text", "work"],
  emits: ["close", "done"],
  setup(props, { emit }) {
    const typed = shallowReactive({ name: "" });
    const act = useAct();
    const confirmed = () => !props.name || typed.name === props.name;
    async function submit(event) {
      event.preventDefault();
      if (confirmed() && (await act.run(props.work))) emit("done");
    }
    return () =>
      h(Dialog, { title: props.title, onClose: () => emit("close") }, () =>
        h("form", { onSubmit: submit }, [
          h("p", props.text),
          props.name && input(typed, "name", `Type the name “${props.name}” to confirm`, { autocomplete: "off", spellcheck: "false", required: true }),
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "submit", class: "danger", disabled: act.busy || !confirmed() }, props.verb),
            h("button", { type: "button", onClick: () => emit("close") }, "Cancel"),
          ]),
        ]),
      );
  },
};

/** A small chart of numbers without axes. */
export function sparkline(values) {
  if (values.length < 2) return null;
  const highest = Math.max(...values, 1);
  const points = values.map((one, at) => `${(at * 80) / (values.length - 1)},${19 - (one * 18) / highest}`).join(" ");
  return h("svg", { class: "sparkline", viewBox: "0 0 80 20", "aria-hidden": "true" }, h("polyline", { points }));
}

/** A table that is a list of cards on narrow screens: `columns` are [heading, class]. */
export const table = (label, columns, rows) =>
  h("table", { role: "table", "aria-label": label }, [
    h("thead", { role: "rowgroup" },
      h("tr", { role: "row" }, columns.map(([name, kind]) => h("th", { role: "columnheader", scope: "col", class: kind }, name)))),
    h("tbody", { role: "rowgroup" },
      rows.map(({ key, cells }) =>
        h("tr", { role: "row", key }, cells.map((cell, at) =>
          h(at ? "td" : "th", {
            role: at ? "cell" : "rowheader",
            scope: at ? undefined : "row",
            class: columns[at][1],
            "data-label": columns[at][0],
          }, cell))))),
  ]);
