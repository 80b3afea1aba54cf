// Publishes a message to a topic.

import { call, topicPath } from "../api.js";
import { PUBLISHED_TYPES, addAttribute, attributeFields, attributesOf } from "../message_attributes.js";
import { input, outcome, useAct } from "../widgets.js";

const { h, reactive } = Vue;
const WHOLE = "the same for all";
const BY_PROTOCOL = "by protocol (JSON)";

export const Publish = {
  props: ["name"],
  setup(props) {
    const fifo = props.name.endsWith(".fifo");
    const form = reactive({ body: "", subject: "", structure: WHOLE, group: fifo ? "default" : "", deduplication: "", rows: [] });
    const act = useAct();
    function submit(event) {
      event.preventDefault();
      act.run(async () => {
        const json = {
          body: form.body,
          subject: form.subject || undefined,
          structure: form.structure === BY_PROTOCOL ? "json" : undefined,
          group: form.group || undefined,
          deduplication_id: form.deduplication || undefined,
          attributes: attributesOf(form.rows),
        };
        const { id } = await call("POST", topicPath(props.name, "/messages"), { json });
        return `Published: ${id}`;
      });
    }
    return () =>
      h("form", { onSubmit: submit }, [
        input(form, "body", "Message", { tag: "textarea", rows: 6, required: true, spellcheck: "false" }),
        h("div", { class: "line" }, [
          input(form, "subject", "Subject (optional)", { autocomplete: "off", maxlength: 100 }),
          input(form, "structure", "The message is", { tag: "select", options: [WHOLE, BY_PROTOCOL] }),
          input(form, "group", fifo ? "Message group" : "Message group (optional)", { required: fifo, autocomplete: "off" }),
          fifo ? input(form, "deduplication", "Deduplication id (optional)", { autocomplete: "off" }) : null,
        ]),
        form.structure === BY_PROTOCOL ? h("p", { class: "hint" }, "An object with a text for each protocol, and default for the others: {\"default\": \"…\", \"sqs\": \"…\"}.") : null,
        attributeFields(form.rows, PUBLISHED_TYPES),
        outcome(act),
        h("div", { class: "buttons" }, [
          h("button", { type: "submit", class: "primary", disabled: act.busy }, "Publish"),
          addAttribute(form.rows),
        ]),
      ]);
  },
};
