// A queue's numbers: now, and since the page was opened.

import { bytes, count, duration, localTime } from "../text.js";
import { failure, lateness, useLive } from "../widgets.js";

const { defineAsyncComponent, h, shallowReactive } = Vue;
const SAMPLES = 1800; // an hour of changes

const LineChart = defineAsyncComponent(() => import("../charts.js").then((module) => module.LineChart));

const AMOUNTS = [["Available", "visible"], ["In flight", "in_flight"], ["Delayed", "delayed"]];
const RATES = [["Sent", "sent"], ["Received", "received"], ["Deleted", "deleted"]];
const COUNTERS = { sent: "NumberOfMessagesSent", received: "NumberOfMessagesReceived", deleted: "NumberOfMessagesDeleted" };

export const Overview = {
  props: ["name"],
  setup(props) {
    const history = shallowReactive({ amounts: [], rates: [] });
    let before = null;

    const polled = useLive(() => ({ queue: props.name }), (answer) => {
      const values = Object.fromEntries(answer.metrics.map(({ name, value }) => [name, value]));
      const { time, counted_since: since } = answer;
      const amounts = {
        time,
        visible: values.ApproximateNumberOfMessagesVisible,
        in_flight: values.ApproximateNumberOfMessagesNotVisible,
        delayed: values.ApproximateNumberOfMessagesDelayed,
      };
      history.amounts = [...history.amounts, amounts].slice(-SAMPLES);
      if (before && before.since === since && time > before.time) {
        const rates = { time };
        for (const [member, name] of Object.entries(COUNTERS)) {
          rates[member] = Math.max(0, values[name] - before.values[name]) / (time - before.time);
        }
        history.rates = [...history.rates, rates].slice(-SAMPLES);
      }
      before = { time, since, values };
      return { amounts, values, since };
    });

    const fact = (label, value) => h("div", [h("dt", label), h("dd", value)]);

    return () => {
      const { data } = polled;
      if (!data) return failure(polled.error) || h("p", { role: "status" }, "Loading…");
      const { amounts, values, since } = data;
      const age = values.ApproximateAgeOfOldestMessage;
      return [
        failure(polled.error),
        lateness(polled),
        h("dl", { class: "facts" }, [
          AMOUNTS.map(([label, member]) => fact(label, count(amounts[member]))),
          fact("Oldest message", age ? duration(age) : "–"),
          fact("Stored", bytes(values.HoldfastStoredBytes)),
          Object.values(COUNTERS).map((name, at) => fact(`${RATES[at][0]} in all`, count(values[name]))),
        ]),
        h("p", { class: "hint" }, `Totals are counted since ${localTime(since)}. The charts show what happens while this page is open.`),
        h("div", { class: "charts" }, [
          h(LineChart, { title: "Messages", samples: history.amounts, lines: AMOUNTS, unit: "messages" }),
          h(LineChart, { title: "Messages per second", samples: history.rates, lines: RATES, unit: "per second" }),
        ]),
      ];
    };
  },
};
