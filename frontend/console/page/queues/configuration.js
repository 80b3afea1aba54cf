// A queue's attributes and tags, edited within the limits that the service names.

import { call, queuePath } from "../api.js";
import { localTime, utcTime } from "../text.js";
import { PolicyCheck } from "./policy_check.js";
import { failure, input, outcome, useAct } from "../widgets.js";

const { h, onMounted, reactive, shallowReactive } = Vue;

const LABELS = {
  DelaySeconds: "Delay of each message (seconds)",
  MaximumMessageSize: "Largest message (bytes)",
  MessageRetentionPeriod: "Retention (seconds)",
  ReceiveMessageWaitTimeSeconds: "Wait of a receive (seconds)",
  VisibilityTimeout: "Visibility timeout (seconds)",
  KmsDataKeyReusePeriodSeconds: "Reuse of a data key (seconds)",
  HoldfastMaximumDelaySeconds: "Longest delay of a message (seconds)",
  HoldfastMaximumMessages: "Most messages stored (0: any number)",
  HoldfastMaximumBytes: "Most bytes stored (0: any number)",
  HoldfastDeliveryGuarantee: "Delivery guarantee",
  HoldfastAckLevel: "Durability before a send is answered",
  ContentBasedDeduplication: "Deduplication by content",
  SqsManagedSseEnabled: "Encryption with the service’s keys",
  DeduplicationScope: "Scope of deduplication",
  FifoThroughputLimit: "Throughput limit",
  Policy: "Access policy (JSON)",
  RedrivePolicy: "Dead-letter queue (JSON)",
  RedriveAllowPolicy: "Queues that may use this one for dead letters (JSON)",
  KmsMasterKeyId: "Named data key",
};

const worded = (name) => LABELS[name] || name.replace(/^Holdfast/, "").replace(/(?<=[a-z])(?=[A-Z])/g, " ");

export const Configuration = {
  props: ["name", "shown", "refresh"],
  setup(props) {
    const limits = shallowReactive({ attributes: null, error: null });
    const form = reactive({});
    const tags = reactive({ rows: [] });
    const saving = useAct();
    const tagging = useAct();

    function fill() {
      for (const { name } of limits.attributes) form[name] = props.shown.attributes[name] ?? "";
      fillTags();
    }
    function fillTags() {
      tags.rows = Object.entries(props.shown.tags).map(([key, value]) => ({ key, value }));
    }
    onMounted(async () => {
      try {
        const { attributes } = await call("GET", "queue-attributes", { query: { account: undefined } });
        const fifo = props.shown.attributes.FifoQueue === "true";
        limits.attributes = attributes.filter((one) => !one.fixed && (fifo || !one.fifo_only));
        fill();
      } catch (error) {
        limits.error = error;
      }
    });

    function submit(event) {
      event.preventDefault();
      saving.run(async () => {
        const changed = {};
        for (const { name, removable } of limits.attributes) {
          const value = form[name].trim();
          if (value !== (props.shown.attributes[name] ?? "") && (value || removable)) changed[name] = value;
        }
        if (!Object.keys(changed).length) return "Nothing was changed.";
        await call("PATCH", queuePath(props.name), { json: { attributes: changed } });
        await props.refresh();
        fill();
        return "Saved.";
      });
    }

    function submitTags(event) {
      event.preventDefault();
      tagging.run(async () => {
        const wanted = Object.fromEntries(tags.rows.filter(({ key }) => key).map(({ key, value }) => [key, value]));
        const stored = new Map(Object.entries(props.shown.tags));
        const changed = Object.fromEntries([ // a key may be "__proto__"
          ...Object.entries(wanted).filter(([key, value]) => stored.get(key) !== value),
          ...[...stored.keys()].filter((key) => !Object.hasOwn(wanted, key)).map((key) => [key, null]),
        ]);
        if (!Object.keys(changed).length) return "Nothing was changed.";
        await call("PATCH", queuePath(props.name), { json: { tags: changed } });
        await props.refresh();
        fillTags();
        return "Saved.";
      });
    }

    function attribute({ name, minimum, maximum, choices, default: usual, removable }) {
      const label = worded(name);
      if (choices.length) {
        const options = form[name] ? choices : ["", ...choices];
        return input(form, name, label, { tag: "select", options, code: name, hint: usual && `Default: ${usual}` });
      }
      if (minimum !== null) {
        const hint = `${minimum} to ${maximum}${usual ? `; default: ${usual}` : ""}`;
        return input(form, name, label, { type: "number", min: minimum, max: maximum, step: 1, code: name, hint });
      }
      const hint = removable ? "Leave it empty to have none." : undefined;
      if (name === "KmsMasterKeyId") return input(form, name, label, { code: name, hint, autocomplete: "off", spellcheck: "false" });
      return input(form, name, label, { tag: "textarea", rows: 4, code: name, hint, spellcheck: "false" });
    }

    const time = (name) => {
      const seconds = Number(props.shown.attributes[name]);
      return h("dd", [localTime(seconds), h("small", utcTime(seconds))]);
    };

    return () => [
      h("dl", { class: "facts" }, [
        h("div", [h("dt", "ARN"), h("dd", h("code", props.shown.arn))]),
        h("div", [h("dt", "URL"), h("dd", h("code", props.shown.url))]),
        h("div", [h("dt", "Created"), time("CreatedTimestamp")]),
        h("div", [h("dt", "Changed"), time("LastModifiedTimestamp")]),
      ]),
      h("section", { "aria-labelledby": "attributes" }, [
        h("h2", { id: "attributes" }, "Attributes"),
        failure(limits.error),
        limits.attributes &&
          h("form", { class: "grid", onSubmit: submit }, [
            limits.attributes.map(attribute),
            h("div", { class: "whole" }, [
              outcome(saving),
              h("button", { type: "submit", class: "primary", disabled: saving.busy }, "Save attributes"),
            ]),
          ]),
      ]),
      limits.attributes && h(PolicyCheck, { name: props.name, policy: form.Policy || "" }),
      h("section", { "aria-labelledby": "tags" }, [
        h("h2", { id: "tags" }, "Tags"),
        h("form", { onSubmit: submitTags }, [
          tags.rows.length ? null : h("p", "This queue has no tags. Tags group queues on usage reports and invoices."),
          tags.rows.map((row, at) =>
            h("div", { class: "line", key: at }, [
              input(row, "key", `Name of tag ${at + 1}`, { autocomplete: "off", maxlength: 128 }),
              input(row, "value", `Value of tag ${at + 1}`, { autocomplete: "off", maxlength: 256 }),
              h("button", { type: "button", "aria-label": `Remove tag ${at + 1}`, onClick: () => tags.rows.splice(at, 1) }, "Remove"),
            ]),
          ),
          outcome(tagging),
          h("div", { class: "buttons" }, [
            h("button", { type: "button", onClick: () => tags.rows.push({ key: "", value: "" }) }, "Add a tag"),
            h("button", { type: "submit", class: "primary", disabled: tagging.busy }, "Save tags"),
          ]),
        ]),
      ]),
    ];
  },
};
