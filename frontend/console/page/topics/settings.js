// A topic's attributes, policy and tags; and its end.

import { call, topicPath } from "../api.js";
import { PolicyCheck } from "../policy_check.js";
import { Tags } from "../tags.js";
import { Confirm, input, loaded, outcome, useAct, useLoaded } from "../widgets.js";

const { h, reactive, shallowReactive } = Vue;
const ACTIONS = ["Publish", "Subscribe", "ListSubscriptionsByTopic", "GetTopicAttributes", "SetTopicAttributes", "DeleteTopic"];
const FIELDS = [
  { name: "DisplayName", label: "Display name", maxlength: 100, hint: "Empty: none." },
  { name: "MaximumMessageSize", label: "Largest message (bytes)", type: "number", min: 1, required: true },
  { name: "KmsMasterKeyId", label: "Named data key", hint: "Empty: the account’s own." },
  { name: "SignatureVersion", label: "Signatures", choices: ["1", "2"], hint: "1: SHA-1, the default; 2: SHA-256" },
  { name: "TracingConfig", label: "Tracing", choices: ["PassThrough", "Active"] },
  { name: "ContentBasedDeduplication", label: "Deduplication by content", choices: ["false", "true"], fifo: true },
  { name: "FifoThroughputScope", label: "Scope of the throughput", choices: ["Topic", "MessageGroup"], fifo: true },
  { name: "DeliveryPolicy", label: "Delivery policy of HTTP endpoints (JSON)", tag: "textarea", rows: 4, hint: "Empty: the default retries." },
  { name: "Policy", label: "Access policy (JSON)", tag: "textarea", rows: 8, hint: "Empty: the default, which admits this account alone." },
];

export const Settings = {
  props: ["name"],
  setup(props) {
    const path = topicPath(props.name);
    const fields = FIELDS.filter(({ fifo }) => !fifo || props.name.endsWith(".fifo"));
    const form = reactive({});
    const view = shallowReactive({ deleting: false });
    const act = useAct();
    const state = useLoaded(async () => {
      const shown = await call("GET", path);
      for (const { name } of fields) form[name] = shown.attributes[name] ?? "";
      return shown;
    });
    const save = (event) => {
      event.preventDefault();
      act.run(async () => {
        const changed = fields.map(({ name }) => [name, form[name].trim()]).filter(([name, value]) => value !== (state.data.attributes[name] ?? ""));
        if (!changed.length) return "Nothing was changed.";
        await call("PATCH", path, { json: { attributes: Object.fromEntries(changed) } });
        await state.refresh();
        return "Saved.";
      });
    };
    function field({ name, label, choices, fifo, ...attributes }) {
      if (choices) return input(form, name, label, { tag: "select", options: form[name] ? choices : ["", ...choices], code: name, ...attributes });
      return input(form, name, label, { code: name, autocomplete: attributes.tag ? undefined : "off", spellcheck: "false", ...attributes });
    }
    return () => [
      loaded(state, (shown) => [
        h("section", { "aria-labelledby": "attributes" }, [
          h("h2", { id: "attributes" }, "Attributes"),
          h("form", { class: "grid", onSubmit: save }, [
            fields.map(field),
            h("div", { class: "whole" }, [
              outcome(act),
              h("div", { class: "buttons" }, [
                h("button", { type: "submit", class: "primary", disabled: act.busy }, "Save attributes"),
                h("button", { type: "button", class: "danger", onClick: () => (view.deleting = true) }, "Delete the topic…"),
              ]),
            ]),
          ]),
        ]),
        h(PolicyCheck, { path, policy: form.Policy, actions: ACTIONS }),
        h(Tags, {
          tags: shown.tags,
          none: "This topic has no tags. Tags group topics on usage reports and invoices.",
          save: async (tags) => {
            await call("PATCH", path, { json: { tags } });
            await state.refresh();
          },
        }),
      ]),
      view.deleting
        ? h(Confirm, {
            name: props.name, title: "Delete the topic", verb: "Delete the topic", text: "The topic is deleted with its subscriptions and pending deliveries. This cannot be undone.",
            work: () => call("DELETE", path),
            onClose: () => (view.deleting = false),
            onDone: () => (location.hash = "#/topics"),
          })
        : null,
    ];
  },
};
