// A queue's numbers: now, and since the page was opened.

import { administers, call, may, queuePath } from "../api.js";
import { queueLink } from "../links.js";
import { bytes, count, duration, localTime, money } from "../text.js";
import { failure, lateness, loaded, useLive, useLoaded } from "../widgets.js";

const { defineAsyncComponent, h, shallowReactive } = Vue;
const SAMPLES = 1800; // an hour of changes

const LineChart = defineAsyncComponent(() => import("../charts.js").then((module) => module.LineChart));

const AMOUNTS = [["Available", "visible"], ["In flight", "in_flight"], ["Delayed", "delayed"]];
const RATES = [["Sent", "sent"], ["Received", "received"], ["Deleted", "deleted"]];
const AGES = [["Oldest message", "age"]];
const DEPTHS = [["Stored", "depth"]];
const COSTS = [["Cost", "amount"]];
const MONTHS = 6;
const COUNTERS = { sent: "NumberOfMessagesSent", received: "NumberOfMessagesReceived", deleted: "NumberOfMessagesDeleted" };

const valuesOf = (answer) => Object.fromEntries(answer.metrics.map(({ name, value }) => [name, value]));
const kept = (samples, sample) => [...samples, sample].slice(-SAMPLES);

/** The depth of a queue's dead-letter queue. */
const DeadLetterChart = {
  props: ["name"],
  setup(props) {
    const history = shallowReactive({ depths: [] });
    const live = useLive(() => ({ queue: props.name }), (answer) => {
      const values = valuesOf(answer);
      const depth = ["Visible", "NotVisible", "Delayed"].reduce((sum, one) => sum + values[`ApproximateNumberOfMessages${one}`], 0);
      history.depths = kept(history.depths, { time: answer.time, depth });
      return depth;
    });
    return () => live.error && live.data === null
      ? failure(live.error)
      : h(LineChart, { title: `Dead letters in ${props.name}`, samples: history.depths, lines: DEPTHS, unit: "messages" });
  },
};

const DeadLetters = {
  props: ["name"],
  setup(props) {
    const state = useLoaded(async () => (await call("GET", queuePath(props.name))).attributes.RedrivePolicy || "");
    return () => loaded(state, (policy) => (policy ? h(DeadLetterChart, { name: JSON.parse(policy).deadLetterTargetArn.split(":").at(-1) }) : null));
  },
};

/** The latest months (UTC), oldest first. */
function latestMonths() {
  const now = new Date();
  return Array.from({ length: MONTHS }, (_, back) =>
    new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1)).toISOString().slice(0, 7)).reverse();
}

/** What the queue costs by month, where usage is counted; months that were not rated are left out. */
const Costs = {
  props: ["name"],
  setup(props) {
    const state = useLoaded(async () => {
      const found = [];
      for (const month of latestMonths()) {
        try {
          const { lines } = await call("GET", "costs", { query: { month, queue: props.name } });
          const currency = lines[0]?.currency;
          found.push({ month, currency, amount: lines.reduce((sum, one) => sum + (one.currency === currency ? Number(one.amount) : 0), 0) });
        } catch (error) {
          if (error.status !== 404) throw error;
        }
      }
      return found;
    });
    return () => loaded(state, (months) => {
      const last = months.at(-1);
      if (!last) return h("p", { class: "empty" }, "No month is rated yet: the rating does that some time after the first usage.");
      const currency = months.findLast((one) => one.currency)?.currency;
      if (!currency) return h("p", "The queue has cost nothing so far.");
      return [
        h("p", `Cost of ${last.month} so far: ${money(last.amount, currency)}, as last rated.`),
        h(LineChart, { title: "Cost by month", samples: months, lines: COSTS, unit: currency, label: (one) => one.month }),
      ];
    });
  },
};

export const Overview = {
  props: ["name"],
  setup(props) {
    const shown = shallowReactive({ costs: false });
    const history = shallowReactive({ amounts: [], rates: [] });
    let before = null;

    const polled = useLive(() => ({ queue: props.name }), (answer) => {
      const values = valuesOf(answer);
      const { time, counted_since: since } = answer;
      const amounts = {
        time,
        visible: values.ApproximateNumberOfMessagesVisible,
        in_flight: values.ApproximateNumberOfMessagesNotVisible,
        delayed: values.ApproximateNumberOfMessagesDelayed,
        age: values.ApproximateAgeOfOldestMessage,
      };
      history.amounts = kept(history.amounts, amounts);
      if (before && before.since === since && time > before.time) {
        const rates = { time };
        for (const [member, name] of Object.entries(COUNTERS)) {
          rates[member] = Math.max(0, values[name] - before.values[name]) / (time - before.time);
        }
        history.rates = kept(history.rates, rates);
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
        AMOUNTS.every(([, member]) => amounts[member] === 0)
          ? h("p", { class: "empty" }, ["The queue is empty. ", h("a", { href: queueLink(props.name, "messages") }, "Send it a message"), "."])
          : null,
        h("p", { class: "hint" }, `Totals are counted since ${localTime(since)}. The charts show what happens while this page is open.`),
        h("div", { class: "charts" }, [
          h(LineChart, { title: "Messages", samples: history.amounts, lines: AMOUNTS, unit: "messages" }),
          h(LineChart, { title: "Messages per second", samples: history.rates, lines: RATES, unit: "per second" }),
          h(LineChart, { title: "Age of the oldest message (seconds)", samples: history.amounts, lines: AGES, unit: "seconds" }),
          may("manage") ? h(DeadLetters, { name: props.name }) : null,
        ]),
        administers()
          ? h("section", { "aria-labelledby": "cost" }, [
              h("h2", { id: "cost" }, "Cost"),
              shown.costs
                ? h(Costs, { name: props.name })
                : h("button", { type: "button", onClick: () => (shown.costs = true) }, "Show the cost by month"),
            ])
          : null,
      ];
    };
  },
};
