// Partitions of a queue: where they are, and how many there are to be.

import { call, queuePath, session } from "../api.js";
import { count } from "../text.js";
import { input, outcome, table, useAct, usePolled } from "../widgets.js";

const { h, reactive } = Vue;
const SECONDS = 2;
const COLUMNS = [["Partition", "number"], ["Cluster", "name"], ["State", ""], ["First slot", "number"]];

const Shown = {
  props: ["account", "queue"],
  setup(props) {
    const path = queuePath(props.queue, "/partitions");
    const query = { account: props.account };
    const form = reactive({ partitions: "" });
    const act = useAct();
    const polled = usePolled((signal) => call("GET", path, { query, signal }), SECONDS);
    const set = (partitions) =>
      act.run(async () => {
        await call("PUT", path, { query, json: { partitions } });
        await polled.refresh();
        return partitions === null ? "The manager decides by the queue’s rate." : `The manager makes ${count(partitions)} partitions of it.`;
      });
    return () => [
      polled.error ? h("p", { class: "error", role: "alert" }, polled.error.message) : null,
      polled.data
        ? [
            h("p", { role: "status" }, `The queue has ${count(polled.data.partitions.length)} partitions${polled.data.pinned ? `, and is to have ${count(polled.data.pinned)}` : ""}.`),
            table("Partitions", COLUMNS, polled.data.partitions.map((one) => ({ key: one.id, cells: [String(one.id), h("bdi", one.cluster), one.state, count(one.slot)] }))),
            h("form", { class: "line", onSubmit: (event) => {
              event.preventDefault();
              set(Number(form.partitions));
            } }, [
              input(form, "partitions", "Number of partitions", { type: "number", min: 1, max: 64, required: true }),
              h("button", { type: "submit", class: "primary", disabled: act.busy }, "Set"),
              h("button", { type: "button", disabled: act.busy || !polled.data.pinned, onClick: () => set(null) }, "Let the manager decide"),
            ]),
          ]
        : null,
      outcome(act),
    ];
  },
};

export const Partitions = {
  setup() {
    const form = reactive({ account: session.account, queue: "" });
    const view = reactive({ account: "", queue: "" });
    const show = (event) => {
      event.preventDefault();
      Object.assign(view, { account: form.account.trim(), queue: form.queue.trim() });
    };
    return () => [
      h("p", "A standard queue can be split into partitions, which share its load over clusters. The out-cluster manager does it by the queue’s rate, or as it is set here."),
      h("form", { class: "line", onSubmit: show }, [
        input(form, "account", "Account", { pattern: "[0-9]{12}", inputmode: "numeric", required: true, autocomplete: "off" }),
        input(form, "queue", "Queue", { required: true, autocomplete: "off", spellcheck: "false" }),
        h("button", { type: "submit", class: "primary" }, "Show"),
      ]),
      view.queue ? h(Shown, { key: `${view.account}/${view.queue}`, account: view.account, queue: view.queue }) : null,
    ];
  },
};
