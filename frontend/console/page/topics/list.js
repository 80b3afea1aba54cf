// The list of topics.

import { call, may, session } from "../api.js";
import { time } from "../body.js";
import { topicLink } from "../links.js";
import { NamedList } from "../named_list.js";
import { count } from "../text.js";
import { Dialog, input, outcome, table, useAct } from "../widgets.js";

const { h, reactive } = Vue;
const COLUMNS = [["Name", "name"], ["Subscriptions", "number"], ["Created", ""]];

const CreateTopic = {
  emits: ["close"],
  setup(_, { emit }) {
    const form = reactive({ name: "", type: "standard" });
    const act = useAct();
    async function submit(event) {
      event.preventDefault();
      const fifo = form.type === "fifo";
      const name = fifo && !form.name.endsWith(".fifo") ? `${form.name}.fifo` : form.name;
      const attributes = fifo ? { FifoTopic: "true", ContentBasedDeduplication: "true" } : {};
      if (await act.run(() => call("POST", "topics", { json: { name, attributes } }).then(() => ""))) location.hash = topicLink(name);
    }
    return () =>
      h(Dialog, { title: "Create a topic", onClose: () => emit("close") }, () =>
        h("form", { onSubmit: submit }, [
          input(form, "name", "Name", { hint: "Letters, digits, - and _, at most 256 characters.", autocomplete: "off", spellcheck: "false", required: true, maxlength: 256 }),
          input(form, "type", "Type", { tag: "select", options: ["standard", "fifo"], hint: "FIFO topics keep the order within message groups and drop duplicates; their names end with .fifo, and they deliver to queues only." }),
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Create"),
            h("button", { type: "button", onClick: () => emit("close") }, "Cancel"),
          ]),
        ]));
  },
};

/** For callers who cannot list topics. */
const OpenTopic = {
  setup() {
    const form = reactive({ name: "" });
    const submit = (event) => {
      event.preventDefault();
      location.hash = topicLink(form.name.trim());
    };
    return () => [
      h("p", "Your key cannot list topics, which takes the scope “manage”. Open a topic by its name."),
      h("form", { class: "line", onSubmit: submit }, [
        input(form, "name", "Name of the topic", { autocomplete: "off", spellcheck: "false", required: true }),
        h("button", { type: "submit", class: "primary" }, "Open"),
      ]),
    ];
  },
};

const topics = ({ topics: found }, searched) =>
  found.length
    ? table("Topics", COLUMNS, found.map((one) => ({
        key: one.name,
        cells: [h("a", { href: topicLink(one.name) }, h("bdi", one.name)), count(one.subscriptions), time(one.created)],
      })))
    : h("p", { class: "empty", role: "status" }, searched ? "No topic’s name begins like this." : "No topics yet. A topic sends each message that is published to it to all of its subscriptions: queues and HTTP endpoints. Create one, then subscribe a queue on its page.");

const List = {
  setup() {
    const view = reactive({ creating: false });
    return () => [
      h("div", { class: "line" }, [
        h("button", { type: "button", class: "primary", onClick: () => (view.creating = true) }, "Create a topic"),
        h("a", { href: "#/filters" }, "Test a filter policy"),
      ]),
      h(NamedList, { label: "Topics", path: "topics", show: topics }),
      view.creating ? h(CreateTopic, { onClose: () => (view.creating = false) }) : null,
    ];
  },
};

export const Topics = {
  setup: () => () => [
    h("h1", { tabindex: -1 }, session.account === session.caller.account ? "Topics" : `Topics of account ${session.account}`),
    h(may("manage") ? List : OpenTopic),
  ],
};
