// The pages of one topic: numbers, subscriptions, publishing, settings.

import { call, may, topicPath } from "../api.js";
import { time } from "../body.js";
import { topicLink } from "../links.js";
import { count, duration, localTime } from "../text.js";
import { failure, tabLinks, usePolled } from "../widgets.js";
import { Publish } from "./publish.js";
import { Settings } from "./settings.js";
import { Subscription } from "./subscription.js";
import { Subscriptions } from "./subscriptions.js";

const { defineAsyncComponent, h, shallowReactive } = Vue;
const SECONDS = 5;
const SAMPLES = 720; // an hour

const LineChart = defineAsyncComponent(() => import("../charts.js").then((module) => module.LineChart));

const COUNTERS = [
  ["Published", "NumberOfMessagesPublished"],
  ["Delivered", "NumberOfNotificationsDelivered"],
  ["Failed", "NumberOfNotificationsFailed"],
];
const OTHERS = [
  ["Filtered out", "NumberOfNotificationsFilteredOut"],
  ["To dead-letter queues", "NumberOfNotificationsRedrivenToDlq"],
];

const Overview = {
  props: ["name"],
  setup(props) {
    const history = shallowReactive({ rates: [], pending: [] });
    let before = null;

    const polled = usePolled(async (signal) => {
      const [metrics, shown] = await Promise.all([
        call("GET", topicPath(props.name, "/metrics"), { signal }),
        may("manage") ? call("GET", topicPath(props.name), { signal }) : null,
      ]);
      const values = Object.fromEntries(metrics.metrics.map(({ name, value }) => [name, value]));
      const { time, counted_since: since } = metrics;
      history.pending = [...history.pending, { time, pending: values.HoldfastPendingDeliveries }].slice(-SAMPLES);
      if (before && before.since === since && time > before.time) {
        const rates = COUNTERS.map(([, name]) => [name, Math.max(0, values[name] - before.values[name]) / (time - before.time)]);
        history.rates = [...history.rates, { time, ...Object.fromEntries(rates) }].slice(-SAMPLES);
      }
      before = { time, since, values };
      return { values, since, shown };
    }, SECONDS);

    const fact = (label, value) => h("div", [h("dt", label), h("dd", value)]);
    return () => {
      const { data } = polled;
      if (!data) return failure(polled.error) || h("p", { role: "status" }, "Loading…");
      const { values, since, shown } = data;
      return [
        failure(polled.error),
        h("dl", { class: "facts" }, [
          [...COUNTERS, ...OTHERS].map(([label, name]) => fact(label, count(values[name]))),
          fact("Pending deliveries", count(values.HoldfastPendingDeliveries)),
          values.HoldfastOldestPendingDelivery ? fact("Oldest pending", duration(values.HoldfastOldestPendingDelivery)) : null,
          shown && [
            fact("Subscriptions", `${count(shown.subscriptions.confirmed)} confirmed, ${count(shown.subscriptions.pending)} to be confirmed`),
            fact("Created", time(shown.created)),
            fact("ARN", h("code", shown.arn)),
          ],
        ]),
        h("p", { class: "hint" }, `Totals are counted since ${localTime(since)}, some seconds after the calls. The charts show what happens while this page is open.`),
        h("div", { class: "charts" }, [
          h(LineChart, { title: "Messages per second", samples: history.rates, lines: COUNTERS, unit: "per second" }),
          h(LineChart, { title: "Pending deliveries", samples: history.pending, lines: [["Pending", "pending"]], unit: "deliveries" }),
        ]),
      ];
    };
  },
};

const TABS = [
  ["", "Overview", Overview, () => true],
  ["subscriptions", "Subscriptions", Subscriptions, () => may("manage")],
  ["publish", "Publish", Publish, () => may("send")],
  ["settings", "Settings", Settings, () => may("manage")],
];

export const Topic = {
  props: ["name", "tab", "item"],
  setup: (props) => () => {
    const { name, item } = props;
    const tabs = TABS.filter(([, , , shown]) => shown());
    const [tab, , page] = tabs.find(([one]) => one === props.tab) || tabs[0];
    return [
      h("h1", { tabindex: -1 }, h("bdi", name)),
      tabLinks("Pages of the topic", tabs, tab, (one) => topicLink(name, one)),
      tab === "subscriptions" && item ? h(Subscription, { key: item, name, id: item }) : h(page, { key: tab, name }),
    ];
  },
};
