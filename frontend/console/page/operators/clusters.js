// Backend clusters with their nodes and shards, and what is under way in them.

import { call } from "../api.js";
import { time } from "../body.js";
import { count, duration, localTime, percent } from "../text.js";
import { Confirm, failure, outcome, table, useAct, usePolled } from "../widgets.js";

const { h, shallowReactive } = Vue;
const SECONDS = 2;
const NODE_COLUMNS = [["Node", "name"], ["State", ""], ["Shards", "number"], ["CPU", "number"], ["Storage", "number"], ["Release", ""], ["", ""]];
const PROCESS_COLUMNS = [["Process", "name"], ["State", ""], ["Reported", ""]];
const PIN_COLUMNS = [["Account", ""], ["Queue", "name"], ["Partitions", "number"]];

const NOT_KNOWN = "Not known";
const known = (value, shown) => (value === null ? NOT_KNOWN : shown(value));
const fact = (label, value) => h("div", [h("dt", label), h("dd", value)]);
const since = (time) => (time ? h("small", `since ${localTime(time)}`) : null);
const button = (label, name, onClick, act) => h("button", { type: "button", disabled: act.busy, "aria-label": `${label} ${name}`, onClick }, label);

function underWay(clusters) {
  const said = [];
  for (const { name, moving, unassigned, state, nodes } of clusters) {
    if (moving === null) said.push(`${name} has never reported: what is under way in it is not known.`);
    if (moving) said.push(`${count(moving)} shards of ${name} are being handed over.`);
    if (unassigned) said.push(`${count(unassigned)} shards of ${name} have no live owner: their queues wait for a takeover.`);
    if (state === "retiring") said.push(`The queues of ${name} move to other clusters.`);
    for (const node of nodes) {
      if (node.state === "draining" && node.shards) said.push(`${node.name} gives up ${count(node.shards)} shards.`);
      if (node.state === "suspect") said.push(`${node.name} is silent for ${duration(node.silent_seconds)}: a takeover may begin.`);
    }
  }
  return said;
}

function summary(reports, { not_asked: notAsked }) {
  if (reports) return `${count(reports)} ${reports === 1 ? "thing is" : "things are"} under way, or not as usual.`;
  return notAsked.length ? "Nothing is known to be under way; not all could be asked." : "No takeover, no hand-over and no move is under way.";
}

export const Clusters = {
  setup() {
    const polled = usePolled((signal) => call("GET", "cluster", { query: { account: undefined }, signal }), SECONDS);
    const act = useAct();
    const view = shallowReactive({ asked: null });

    const post = (path) => call("POST", `clusters/${path}`, { query: { account: undefined } });
    const change = (path, done) =>
      act.run(async () => {
        await post(path);
        await polled.refresh();
        return done;
      });
    const nodePath = (cluster, node, verb) => `${encodeURIComponent(cluster.name)}/nodes/${encodeURIComponent(node.name)}/${verb}`;
    const row = (cluster) => (node) => ({
      key: node.name,
      cells: [
        [h("bdi", node.name), h("small", node.address)],
        [node.state, since(node.since), node.taken_over_by.length ? h("small", `taken over by ${node.taken_over_by.join(", ")}`) : null],
        count(node.shards), known(node.cpu, percent), known(node.storage, percent), known(node.release, String),
        node.state === "draining"
          ? button("Undrain", node.name, () => change(nodePath(cluster, node, "undrain"), `${node.name} gets shards again.`), act)
          : node.state === "gone" ? ""
            : button("Drain…", node.name, () => (view.asked = {
              name: node.name, title: `Drain ${node.name}`, verb: "Drain the node", path: nodePath(cluster, node, "drain"),
              text: "The node gives up its shards to the other nodes, and gets none until it is undrained.",
            }), act),
      ],
    });
    const section = (cluster) =>
      h("section", { key: cluster.name, "aria-labelledby": `cluster-${cluster.number}` }, [
        h("h2", { id: `cluster-${cluster.number}` }, ["Cluster ", h("bdi", cluster.name)]),
        h("dl", { class: "facts" }, [
          fact("State", cluster.state),
          fact("Utilisation", known(cluster.utilisation, percent)),
          fact("Manager", known(cluster.manager, (name) => h("bdi", name))),
          fact("Reported", cluster.reported_seconds === null ? "never" : `${duration(cluster.reported_seconds)} ago`),
          fact("Weight for new queues", cluster.weight),
          fact("Shards on their way", known(cluster.moving, count)),
          fact("Shards without an owner", known(cluster.unassigned, count)),
        ]),
        table(`Nodes of ${cluster.name}`, NODE_COLUMNS, cluster.nodes.map(row(cluster))),
        h("div", { class: "buttons" },
          cluster.state === "serving"
            ? button("Retire…", cluster.name, () => (view.asked = {
                name: cluster.name, title: `Retire ${cluster.name}`, verb: "Retire the cluster", path: `${encodeURIComponent(cluster.name)}/retire`,
                text: "All queues of the cluster move to other clusters, and it gets no new ones.",
              }), act)
            : button("Serve again", cluster.name, () => change(`${encodeURIComponent(cluster.name)}/serve`, `${cluster.name} takes new queues again.`), act)),
      ]);
    const manager = (shown) =>
      h("section", { "aria-labelledby": "manager" }, [
        h("h2", { id: "manager" }, "Out-cluster manager"),
        shown.processes.length
          ? table("Processes", PROCESS_COLUMNS, shown.processes.map((one) => ({ key: one.name, cells: [h("bdi", one.name), [one.state, since(one.since)], time(one.reported_at)] })))
          : null,
        shown.decisions.length
          ? [h("h3", "Latest decisions"), h("ul", shown.decisions.toReversed().map((one) => h("li", { key: `${one.time}${one.text}` }, [localTime(one.time), ": ", one.text])))]
          : null,
        shown.pins.length
          ? table("Queues whose partitions are set", PIN_COLUMNS, shown.pins.map((one) => ({ key: `${one.account}/${one.queue}`, cells: [one.account, h("bdi", one.queue), count(one.partitions)] })))
          : null,
      ]);

    const confirmation = ({ name, title, verb, text, path }) =>
      h(Confirm, {
        name, title, verb, text,
        work: () => post(path),
        onClose: () => (view.asked = null),
        onDone: () => {
          view.asked = null;
          polled.refresh();
        },
      });

    return () => {
      const { data } = polled;
      if (!data) return failure(polled.error) || h("p", { role: "status" }, "Loading…");
      const said = underWay(data.clusters);
      return [
        failure(polled.error),
        outcome(act),
        view.asked ? confirmation(view.asked) : null,
        data.not_asked.map((one) => h("p", { class: "error", key: one }, `No answer in time: ${one}.`)),
        h("section", { "aria-labelledby": "now" }, [
          h("h2", { id: "now" }, "Under way"),
          h("p", { role: "status" }, summary(said.length, data)),
          said.length ? h("ul", said.map((one) => h("li", { key: one }, one))) : null,
          data.damaged === null
            ? h("p", { class: "hint" }, "Damage of journals is not known here: each backend reports it in its metric holdfast_damaged.")
            : data.damaged
              ? h("p", { class: "error" }, `${count(data.damaged)} partitions cannot be served, because their journal is damaged. The command holdfast damage lists them.`)
              : null,
        ]),
        data.clusters.map(section),
        data.manager
          ? manager(data.manager)
          : h("p", { class: "hint" }, data.not_asked.length ? "The out-cluster manager’s state is not known." : "This service has no out-cluster manager."),
      ];
    };
  },
};
