// Limits of the account, and how far they are used.

import { call, session } from "../api.js";
import { bytes, count, rate } from "../text.js";
import { failure, table, usePolled } from "../widgets.js";

const { h } = Vue;
const SECONDS = 5;

const LABELS = {
  calls: "All calls",
  send: "Calls that send",
  receive: "Calls that receive",
  manage: "All other calls",
  each_queue: "Calls to each queue",
  queues: "Queues",
  topics: "Streams",
  topic_partitions: "Partitions of streams",
  keys: "Keys",
  stored_bytes: "Stored",
  connections: "Calls at the same time",
  long_polls: "Waiting receives",
};
const COLUMNS = [["Limit", ""], ["Used", "number"], ["Maximum", "number"], ["", ""]];

function cells({ name, limit, per_second: perSecond, used, share, local }) {
  const number = name === "stored_bytes" ? bytes : count;
  const label = LABELS[name] || name;
  const maximum = limit === null ? "no limit" : perSecond === null ? number(limit) : `${rate(perSecond)}/s, ${number(limit)} at once`;
  return [
    [label, local ? h("small", "at this server") : null],
    used === null ? "–" : perSecond === null ? number(used) : `${rate(used)} of the burst`,
    maximum,
    share === null ? "" : h("progress", { value: share, max: 1, "aria-label": `${label}: used` }),
  ];
}

export const Limits = {
  setup() {
    const polled = usePolled((signal) => call("GET", `tenants/${session.account}/limits/use`, { query: { account: undefined }, signal }), SECONDS);
    return () => [
      failure(polled.error),
      polled.data
        ? table("Limits", COLUMNS, polled.data.limits.map((one) => ({ key: one.name, cells: cells(one) })))
        : polled.error ? null : h("p", { role: "status" }, "Loading…"),
      h("p", { class: "hint" }, "The operator of the service sets limits. Calls above a rate are answered with an error that says when to try again."),
    ];
  },
};
