// Usage, cost and invoices of the account.

import { call, download, session } from "../api.js";
import { bytes, count, money, month } from "../text.js";
import { input, loaded, outcome, table, useAct, useLoaded } from "../widgets.js";

const { defineAsyncComponent, h, reactive } = Vue;
const LineChart = defineAsyncComponent(() => import("../charts.js").then((module) => module.LineChart));

const LINES = [["Calls", "calls"], ["Throttled", "throttled"], ["Failed", "failed"]];
const COST_COLUMNS = [["Queue", "name"], ["Tags", ""], ["Cost", "number"], ["Charges", ""]];
const INVOICE_COLUMNS = [["Number", ""], ["Month", ""], ["Total", "number"], ["Due", ""], ["", ""]];
const DOCUMENT_MS = 2000;
const GROUPS = ["day", "queue", "tag", "action"];

const fact = (label, ...value) => h("div", [h("dt", label), h("dd", value)]);

const Consumption = {
  props: ["month", "by"],
  setup(props) {
    const state = useLoaded(() => call("GET", "usage", { query: { month: props.month, by: props.by, limit: 200 } }));
    const row = (one, at) => ({
      key: at,
      cells: [h("bdi", one.name || "(none)"), ...["calls", "messages", "throttled", "failed"].map((name) => count(one[name])), bytes(one.bytes_in), bytes(one.bytes_out)],
    });
    const columns = [
      [props.by[0].toUpperCase() + props.by.slice(1), "name"],
      ...["Calls", "Messages", "Throttled", "Failed", "Bytes in", "Bytes out"].map((name) => [name, "number"]),
    ];
    return () => loaded(state, ({ total, lines, more, missing }) => [
      h("dl", { class: "facts" }, [
        fact("Calls", count(total.calls)),
        fact("Messages", count(total.messages)),
        fact("Throttled", count(total.throttled)),
        fact("Failed (free)", count(total.failed)),
        fact("Bytes in", bytes(total.bytes_in)),
        fact("Bytes out", bytes(total.bytes_out)),
      ]),
      props.by === "day" && lines.length > 1
        ? h(LineChart, { title: "Calls by day", samples: lines, lines: LINES, unit: "calls", label: (one) => one.name })
        : null,
      lines.length
        ? table("Usage", columns, lines.map(row))
        : h("p", { class: "empty" }, "No usage of this month is summed up yet. It is summed up by the hour, some minutes later."),
      more ? h("p", { class: "hint" }, `${count(more)} more lines are not shown.`) : null,
      missing.length ? h("p", { class: "hint" }, `Not summed up yet: ${missing.join(", ")}.`) : null,
    ]);
  },
};

const Costs = {
  props: ["month"],
  setup(props) {
    const state = useLoaded(() => call("GET", "costs", { query: { month: props.month, limit: 20 } }));
    const row = (one, at) => ({
      key: at,
      cells: [
        h("bdi", one.queue || "(no queue)"), one.tags, money(one.amount, one.currency),
        Object.entries(one.charges).map(([name, amount]) => `${name} ${money(amount, one.currency)}`).join(", "),
      ],
    });
    return () => loaded(state, ({ name, note, totals, forecast, lines, more, explained }) => [
      h("dl", { class: "facts" }, [
        totals.map(({ amount, currency }) => fact(name, money(amount, currency), h("small", note))),
        forecast
          ? fact("Forecast of the bill", money(forecast.likely, forecast.currency),
              h("small", `between ${money(forecast.low, forecast.currency)} and ${money(forecast.high, forecast.currency)}, by ${count(forecast.days)} days`))
          : fact("Forecast of the bill", "–", h("small", "needs some days of usage")),
      ]),
      lines.length ? table("Costs", COST_COLUMNS, lines.map(row)) : null,
      more ? h("p", { class: "hint" }, `${count(more)} more queues are not shown.`) : null,
      h("p", { class: "hint" }, explained),
    ]);
  },
};

const Invoices = {
  setup() {
    const state = useLoaded(() => call("GET", "invoices"));
    const act = useAct();

    const save = (one, format, suffix) =>
      act.run(async () => {
        await download(`invoices/${one.period}`, { format }, `invoice-${one.number}.${suffix}`);
        return "Saved.";
      });
    const savePdf = (one) =>
      act.run(async () => {
        const path = `invoices/${one.period}/documents`;
        let job = await call("POST", path, { json: { kind: "pdf" } });
        while (["queued", "running"].includes(job.state)) {
          await new Promise((resolve) => setTimeout(resolve, DOCUMENT_MS));
          job = await call("GET", `${path}/${job.id}`, { query: { account: undefined } });
        }
        if (job.error) return job.error.detail;
        await download(`${path}/${job.id}/content`, { account: undefined }, `invoice-${one.number}.pdf`);
        return "Saved.";
      });
    const row = (one) => ({
      key: one.number,
      cells: [
        one.number, month(one.period), money(one.total, one.currency), one.due || "–",
        h("div", { class: "buttons" }, [
          ["PDF", () => savePdf(one)], ["CSV (FOCUS)", () => save(one, "focus-csv", "csv")], ["JSON", () => save(one, "json", "json")],
        ].map(([label, onClick]) => h("button", { type: "button", disabled: act.busy, "aria-label": `${label} of ${one.number}`, onClick }, label))),
      ],
    });
    return () => [
      loaded(state, ({ invoices }) =>
        invoices.length ? table("Invoices", INVOICE_COLUMNS, invoices.map(row)) : h("p", "There are no invoices yet. A month is invoiced after its end.")),
      outcome(act),
    ];
  },
};

export const Usage = {
  setup() {
    const form = reactive({ month: new Date().toISOString().slice(0, 7), by: "day" });
    return () => [
      h("div", { class: "line" }, [
        input(form, "month", "Month (UTC)", { type: "month", required: true }),
        input(form, "by", "By", { tag: "select", options: GROUPS }),
      ]),
      [["Cost", h(Costs, { key: `${session.account}/${form.month}`, month: form.month })],
        ["Usage", h(Consumption, { key: `${session.account}/${form.month}/${form.by}`, month: form.month, by: form.by })],
        ["Invoices", h(Invoices)],
      ].map(([title, part]) =>
        h("section", { "aria-labelledby": title.toLowerCase() }, [h("h2", { id: title.toLowerCase() }, title), part])),
    ];
  },
};
