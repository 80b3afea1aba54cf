// Alarms of a queue: a webhook is called when a metric is beyond a threshold for some minutes.

import { call, queuePath } from "../api.js";
import { time } from "../body.js";
import { count, rate } from "../text.js";
import { Confirm, input, loaded, outcome, secret, table, useAct, useLoaded } from "../widgets.js";

const { h, reactive, shallowReactive } = Vue;
const COMPARISONS = [
  ["GreaterThanThreshold", "is above"], ["GreaterThanOrEqualToThreshold", "is at least"],
  ["LessThanThreshold", "is below"], ["LessThanOrEqualToThreshold", "is at most"],
];
const STATES = { OK: "OK", ALARM: "in alarm", INSUFFICIENT_DATA: "too few values" };
const COLUMNS = [["Alarm", "name"], ["Condition", ""], ["State", ""], ["Webhook", ""], ["", ""]];

const alarmPath = (name, rest = "") => `alarms/${encodeURIComponent(name)}${rest}`;
const worded = (comparison) => COMPARISONS.find(([name]) => name === comparison)?.[1] ?? comparison;

export const Alarms = {
  props: ["name"],
  setup(props) {
    const state = useLoaded(async () => {
      const [{ alarms }, { metrics }] = await Promise.all([
        call("GET", "alarms", { query: { queue: props.name } }), call("GET", queuePath(props.name, "/metrics")),
      ]);
      return { alarms, metrics };
    });
    const form = reactive({ name: "", metric: "ApproximateNumberOfMessagesVisible", comparison: COMPARISONS[0][1], threshold: "", minutes: "5", webhook: "" });
    const view = shallowReactive({ made: null, deleting: "" });
    const act = useAct();

    const create = (event) => {
      event.preventDefault();
      act.run(async () => {
        const { metric, webhook } = form;
        const [comparison] = COMPARISONS.find(([, words]) => words === form.comparison);
        view.made = await call("PUT", alarmPath(form.name.trim()), {
          json: { queue: props.name, metric, comparison, threshold: Number(form.threshold), minutes: Number(form.minutes), webhook: webhook.trim() },
        });
        form.webhook = "";
        await state.refresh();
        return `The alarm ${view.made.name} is set.`;
      });
    };
    const test = (name) =>
      act.run(async () => {
        const { detail } = await call("POST", alarmPath(name, "/test"));
        await state.refresh();
        return detail;
      });
    const counters = () => state.data.metrics.filter(({ counter }) => counter).map(({ name }) => name);
    const delivery = ({ webhook_host: host, delivered_at: delivered, trouble, waiting, lost }) => [
      h("bdi", host),
      delivered ? h("small", ["delivered ", time(delivered)]) : null,
      trouble ? h("small", trouble) : null,
      waiting || lost ? h("small", `${count(waiting)} wait, ${count(lost)} were dropped`) : null,
    ];
    const row = (one) => ({
      key: one.name,
      cells: [
        h("bdi", one.name),
        `${one.metric} ${worded(one.comparison)} ${rate(one.threshold)}${counters().includes(one.metric) ? " a minute" : ""} for ${count(one.minutes)} min`,
        [STATES[one.state] ?? one.state, one.value === null ? null : h("small", `value ${rate(one.value)}`), one.since ? h("small", ["since ", time(one.since)]) : null],
        delivery(one),
        h("div", { class: "buttons" }, [
          h("button", { type: "button", disabled: act.busy, "aria-label": `Test ${one.name}`, onClick: () => test(one.name) }, "Test"),
          h("button", { type: "button", class: "danger", "aria-label": `Delete ${one.name}`, onClick: () => (view.deleting = one.name) }, "Delete…"),
        ]),
      ],
    });

    return () => [
      loaded(state, ({ alarms, metrics }) => [
        alarms.length
          ? table("Alarms", COLUMNS, alarms.map(row))
          : h("p", { class: "empty" }, "No alarms yet. Set one below: a webhook is called when the queue gets too deep, too old or too quiet."),
        h("section", { "aria-labelledby": "set" }, [
          h("h2", { id: "set" }, "Set an alarm"),
          h("form", { onSubmit: create }, [
            h("div", { class: "line" }, [
              input(form, "name", "Name (one that exists is replaced)", { required: true, maxlength: 80, pattern: "[A-Za-z0-9_\\-]+", autocomplete: "off" }),
              input(form, "metric", "Metric (counters: a minute)", { tag: "select", options: metrics.map(({ name }) => name) }),
              input(form, "comparison", "Comparison", { tag: "select", options: COMPARISONS.map(([, words]) => words) }),
              input(form, "threshold", "Threshold", { type: "number", step: "any", required: true }),
              input(form, "minutes", "For so many minutes", { type: "number", min: 1, max: 1440, required: true }),
            ]),
            input(form, "webhook", "Webhook (https URL, called by POST)", { type: "url", required: true, autocomplete: "off" }),
            outcome(act),
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Set the alarm"),
          ]),
          view.made ? secret(`The key of the signatures of ${view.made.name}. It is never shown again.`, view.made.secret) : null,
        ]),
      ]),
      view.deleting
        ? h(Confirm, {
            title: `Delete the alarm ${view.deleting}`, verb: "Delete the alarm", text: "Notifications that were not delivered yet are dropped.",
            work: () => call("DELETE", alarmPath(view.deleting)),
            onClose: () => (view.deleting = ""),
            onDone: () => {
              view.deleting = "";
              state.refresh();
            },
          })
        : null,
    ];
  },
};
