// A list that the service searches by names and divides into pages.

import { call } from "./api.js";
import { failure, useLoaded } from "./widgets.js";

const { h, reactive } = Vue;
const PAGE = 50;
const TYPING_MS = 250;

/** `show` makes the list of a page of `path`; `unsearched`: it is not by name. */
export const NamedList = {
  props: { label: String, path: String, show: Function, unsearched: Boolean },
  setup(props) {
    const view = reactive({ prefix: "", pages: [""] });
    let typing = 0;
    const state = useLoaded(() => call("GET", props.path, { query: { prefix: view.prefix, after: view.pages.at(-1), limit: PAGE } }));
    const turn = (change) => {
      Object.assign(view, change);
      state.refresh();
    };
    const search = (event) => {
      const prefix = event.target.value.trim();
      clearTimeout(typing);
      typing = setTimeout(turn, TYPING_MS, { prefix, pages: [""] });
    };
    return () => [
      props.unsearched ? null : h("div", { class: "field" }, [
        h("label", { for: `${props.path}-search` }, `${props.label} that begin with`),
        h("input", { id: `${props.path}-search`, type: "search", autocomplete: "off", spellcheck: "false", onInput: search }),
      ]),
      failure(state.error),
      state.data ? props.show(state.data, view.prefix !== "" || view.pages.length > 1) : state.error ? null : h("p", { role: "status" }, "Loading…"),
      view.pages.length > 1 || state.data?.next
        ? h("nav", { class: "buttons", "aria-label": `Pages of ${props.label}` }, [
            h("button", { type: "button", disabled: view.pages.length === 1, onClick: () => turn({ pages: view.pages.slice(0, -1) }) }, "Previous"),
            h("button", { type: "button", disabled: !state.data?.next, onClick: () => turn({ pages: [...view.pages, state.data.next] }) }, "Next"),
          ])
        : null,
    ];
  },
};
