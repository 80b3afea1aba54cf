// The subscriptions of a topic: a list, and a form for a new one.

import { call, topicPath } from "../api.js";
import { time } from "../body.js";
import { subscriptionLink } from "../links.js";
import { NamedList } from "../named_list.js";
import { Dialog, input, outcome, table, useAct } from "../widgets.js";
import { attributesOf, subscriptionFields, subscriptionForm } from "./subscription.js";

const { h, reactive, shallowReactive } = Vue;
const COLUMNS = [["Endpoint", "name"], ["Protocol", ""], ["State", ""], ["Delivery", ""], ["Created", ""]];

const Subscribe = {
  props: ["name"],
  emits: ["close"],
  setup(props, { emit }) {
    const fifo = props.name.endsWith(".fifo");
    const form = reactive({ kind: "queue", endpoint: "", ...subscriptionForm({}) });
    const act = useAct();
    async function submit(event) {
      event.preventDefault();
      await act.run(async () => {
        const endpoint = form.endpoint.trim();
        const json = { attributes: attributesOf(form, {}) };
        if (form.kind === "queue" && !endpoint.startsWith("arn:")) json.queue = endpoint;
        else Object.assign(json, { protocol: form.kind === "queue" ? "sqs" : endpoint.split(":")[0].toLowerCase(), endpoint });
        const made = await call("POST", topicPath(props.name, "/subscriptions"), { json });
        location.hash = subscriptionLink(props.name, made.id);
      });
    }
    return () =>
      h(Dialog, { title: "Create a subscription", onClose: () => emit("close") }, () =>
        h("form", { onSubmit: submit }, [
          fifo ? null : input(form, "kind", "Deliver to", { tag: "select", options: ["queue", "HTTP endpoint"] }),
          form.kind === "queue"
            ? input(form, "endpoint", "Queue", { hint: "The name of a queue of this account, or an ARN. Its policy has to let the topic send.", autocomplete: "off", spellcheck: "false", required: true })
            : input(form, "endpoint", "URL", { type: "url", hint: "It gets a message with a link that confirms the subscription.", autocomplete: "off", required: true }),
          subscriptionFields(form, form.kind !== "queue"),
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Subscribe"),
            h("button", { type: "button", onClick: () => emit("close") }, "Cancel"),
          ]),
        ]));
  },
};

export const Subscriptions = {
  props: ["name"],
  setup(props) {
    const view = shallowReactive({ creating: false });
    const row = (one) => ({
      key: one.id,
      cells: [
        h("a", { href: subscriptionLink(props.name, one.id) }, h("bdi", one.endpoint)),
        one.protocol,
        one.confirmed ? "confirmed" : "to be confirmed",
        [one.raw ? "raw" : "in SNS’s JSON", one.filtered ? ", filtered" : ""],
        time(one.created),
      ],
    });
    const show = ({ subscriptions }) =>
      subscriptions.length
        ? table("Subscriptions", COLUMNS, subscriptions.map(row))
        : h("p", { class: "empty", role: "status" }, "No subscriptions yet. Until there is one, messages that are published go nowhere.");
    return () => [
      h("button", { type: "button", class: "primary", onClick: () => (view.creating = true) }, "Create a subscription"),
      h(NamedList, { label: "Subscriptions", path: topicPath(props.name, "/subscriptions"), show, unsearched: true }),
      view.creating ? h(Subscribe, { name: props.name, onClose: () => (view.creating = false) }) : null,
    ];
  },
};
