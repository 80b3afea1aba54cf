// The audit log of the account, newest lines first.

import { call, session } from "../api.js";
import { localTime, visible } from "../text.js";
import { failure, input, table } from "../widgets.js";

const { h, onMounted, reactive, shallowReactive } = Vue;
const PAGE = 50;
const COLUMNS = [["Time", ""], ["Action", ""], ["Outcome", ""], ["Target", "name"], ["By", "name"], ["From", ""]];

export const Audit = {
  setup() {
    const form = reactive({ containing: "", all: "no" });
    const view = shallowReactive({ lines: [], next: null, busy: false, error: null });

    async function read(before) {
      Object.assign(view, { busy: true, error: null });
      try {
        const query = { containing: form.containing.trim(), before, limit: PAGE };
        if (form.all === "yes") query.account = "all";
        const page = await call("GET", "audit", { query });
        Object.assign(view, { lines: before ? [...view.lines, ...page.lines] : page.lines, next: page.next });
      } catch (error) {
        view.error = error;
      } finally {
        view.busy = false;
      }
    }
    onMounted(() => read(""));
    const search = (event) => {
      event.preventDefault();
      read("");
    };
    const row = (line, at) => ({
      key: at,
      cells: [
        [localTime(Date.parse(line.time) / 1000), h("small", line.time.replace("T", " ").replace(/\.\d+Z/, " UTC"))],
        [line.action, line.count ? ` (${line.count} times)` : ""],
        [line.outcome, line.reason ? h("small", visible(line.reason)) : null],
        [h("bdi", visible(line.target)), line.made ? h("small", `made ${line.made}`) : null],
        [visible(line.principal.split(":").at(-1) || "unknown"), h("small", visible(line.credential))],
        line.address === null ? "–" : line.address,
      ],
    });

    return () => [
      h("form", { class: "line", onSubmit: search }, [
        input(form, "containing", "Containing", { type: "search", autocomplete: "off", maxlength: 200 }),
        session.caller.role === "operator" ? input(form, "all", "Of all accounts", { tag: "select", options: ["no", "yes"] }) : null,
        h("button", { type: "submit", class: "primary", disabled: view.busy }, "Search"),
      ]),
      failure(view.error),
      view.lines.length
        ? table("Audit log", COLUMNS, view.lines.map(row))
        : view.busy ? h("p", { role: "status" }, "Loading…") : h("p", { class: "empty", role: "status" }, view.next ? "Nothing was found in the newest part of the log." : "Nothing was found."),
      view.next ? h("button", { type: "button", disabled: view.busy, onClick: () => read(view.next) }, "Older") : null,
    ];
  },
};
