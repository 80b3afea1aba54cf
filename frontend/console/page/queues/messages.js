// Messages of a queue: peek, send, receive, delete.

import { call, may, queuePath } from "../api.js";
import { Body, time } from "../body.js";
import { bytes, count, visible } from "../text.js";
import { input, outcome, useAct } from "../widgets.js";

const { computed, h, reactive, shallowReactive } = Vue;
/** A message as it was peeked or received. */
function message(one, acts) {
  const facts = [
    ["Sent", time(one.sent)],
    ["Receives", count(one.receives)],
    one.state && ["State", [one.state.replace("_", " "), one.due ? [", until ", time(one.due)] : ""]],
    one.group && ["Group", visible(one.group)],
    one.deduplication_id && ["Deduplication id", visible(one.deduplication_id)],
    one.sequence_number && ["Sequence number", one.sequence_number],
    one.origin && ["Came from", one.origin.split(":").at(-1)],
    one.sender && ["Sender", visible(one.sender)],
    one.trace_header && ["Trace", visible(one.trace_header)],
  ];
  return h("article", { class: "message", key: one.receipt_handle || one.id, "aria-label": `Message ${one.id}` }, [
    h("h3", h("code", one.id)),
    h("dl", { class: "facts" }, facts.filter(Boolean).map(([name, value]) => h("div", [h("dt", name), h("dd", value)]))),
    one.body === null
      ? h("p", { class: "error" }, "The body cannot be read: the journal is damaged there, or it cannot be decrypted.")
      : h(Body, { text: one.body, label: "Body" }),
    Object.entries(one.attributes).map(([name, { type, value }]) =>
      h("div", { class: "attribute" }, [h("h4", [h("bdi", visible(name)), " ", h("small", visible(type))]), h(Body, { text: value, label: `Attribute ${visible(name)}` })])),
    acts,
  ]);
}

const Peek = {
  props: ["name"],
  setup(props) {
    const form = reactive({ limit: "10", search: "" });
    const found = shallowReactive({ messages: null });
    const act = useAct();
    const matching = computed(() => {
      const wanted = form.search.toLowerCase();
      const texts = (one) => [one.id, one.group, one.body, ...Object.values(one.attributes).map(({ value }) => value)];
      return (found.messages || []).filter((one) => texts(one).some((text) => text?.toLowerCase().includes(wanted)));
    });
    const peek = (event) => {
      event?.preventDefault();
      act.run(async () => {
        found.messages = (await call("GET", queuePath(props.name, "/peek"), { query: { limit: form.limit } })).messages;
      });
    };
    return () =>
      h("section", { "aria-labelledby": "peek" }, [
        h("h2", { id: "peek" }, "Peek"),
        h("p", "Shows the first messages without receiving them: nothing changes for consumers."),
        h("form", { class: "line", onSubmit: peek }, [
          input(form, "limit", "Messages", { tag: "select", options: ["10", "50", "100"] }),
          h("button", { type: "submit", class: "primary", disabled: act.busy }, "Peek"),
          found.messages?.length ? input(form, "search", "Containing", { type: "search", autocomplete: "off" }) : null,
        ]),
        outcome(act),
        found.messages &&
          h("p", { role: "status" }, found.messages.length
            ? `${count(matching.value.length)} of ${count(found.messages.length)} messages.`
            : "The queue is empty. Send it a message below."),
        matching.value.map((one) => message(one)),
      ]);
  },
};

const Send = {
  props: ["name"],
  setup(props) {
    const fifo = props.name.endsWith(".fifo");
    const form = reactive({ body: "", delay: "", group: fifo ? "default" : "", deduplication: "" });
    const attributes = reactive({ rows: [] });
    const act = useAct();

    function submit(event) {
      event.preventDefault();
      act.run(async () => {
        const json = { body: form.body };
        if (form.delay) json.delay_seconds = Number(form.delay);
        if (form.group) json.group = form.group;
        if (form.deduplication) json.deduplication_id = form.deduplication;
        if (attributes.rows.length) {
          json.attributes = Object.fromEntries(attributes.rows.map(({ name, type, value }) => [name, { type, value }]));
        }
        const { id } = await call("POST", queuePath(props.name, "/messages"), { json });
        return `Sent: ${id}`;
      });
    }
    async function readFile(event) {
      const [file] = event.target.files;
      if (!file) return;
      await act.run(async () => {
        const content = new Uint8Array(await file.arrayBuffer());
        try {
          form.body = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(content);
          return `The body is the content of the file: ${bytes(content.length)} of text.`;
        } catch {
          form.body = btoa(Array.from(content, (one) => String.fromCharCode(one)).join(""));
          return `The body is the content of the file in base64: ${bytes(content.length)} that are no text.`;
        }
      });
    }

    return () =>
      h("section", { "aria-labelledby": "send" }, [
        h("h2", { id: "send" }, "Send"),
        h("form", { onSubmit: submit }, [
          input(form, "body", "Body", { tag: "textarea", rows: 6, required: true, spellcheck: "false" }),
          h("div", { class: "field" }, [
            h("label", { for: "file" }, "Body from a file"),
            h("input", { id: "file", type: "file", onChange: readFile }),
          ]),
          h("div", { class: "line" }, [
            fifo ? null : input(form, "delay", "Delay (seconds)", { type: "number", min: 0 }),
            input(form, "group", fifo ? "Message group" : "Message group (optional)", { required: fifo, autocomplete: "off" }),
            fifo ? input(form, "deduplication", "Deduplication id (optional)", { autocomplete: "off" }) : null,
          ]),
          attributes.rows.map((row, at) =>
            h("div", { class: "line", key: at }, [
              input(row, "name", `Attribute ${at + 1}`, { required: true, autocomplete: "off" }),
              input(row, "type", `Type of attribute ${at + 1}`, { tag: "select", options: ["String", "Number", "Binary"] }),
              input(row, "value", row.type === "Binary" ? "Value in base64" : "Value", { required: true, autocomplete: "off" }),
              h("button", { type: "button", "aria-label": `Remove attribute ${at + 1}`, onClick: () => attributes.rows.splice(at, 1) }, "Remove"),
            ])),
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Send"),
            h("button", { type: "button", disabled: attributes.rows.length >= 10, onClick: () => attributes.rows.push({ name: "", type: "String", value: "" }) }, "Add an attribute"),
          ]),
        ]),
      ]);
  },
};

const Receive = {
  props: ["name"],
  setup(props) {
    const form = reactive({ most: "1", visibility: "" });
    const held = shallowReactive({ messages: [] });
    const act = useAct();

    const receive = (event) => {
      event.preventDefault();
      act.run(async () => {
        const query = { max: form.most, visibility: form.visibility, wait: 0 };
        const answer = await call("GET", queuePath(props.name, "/messages"), { query });
        if (!answer) return "No message is available now.";
        held.messages = [...held.messages, ...answer.messages];
        return `Received: ${count(answer.messages.length)}`;
      });
    };
    const remove = (one) =>
      act.run(async () => {
        await call("DELETE", queuePath(props.name, "/messages"), { query: { receipt_handle: one.receipt_handle } });
        held.messages = held.messages.filter((other) => other !== one);
        return `Deleted: ${one.id}`;
      });

    return () =>
      h("section", { "aria-labelledby": "receive" }, [
        h("h2", { id: "receive" }, "Receive"),
        h("p", "Takes messages as a consumer does: nobody else gets them until the visibility timeout ends, and each receive counts towards the dead-letter queue."),
        h("form", { class: "line", onSubmit: receive }, [
          input(form, "most", "Messages", { type: "number", min: 1, max: 10, required: true }),
          input(form, "visibility", "Visibility timeout (seconds; empty: the queue’s)", { type: "number", min: 0, max: 43_200 }),
          h("button", { type: "submit", class: "primary", disabled: act.busy }, "Receive"),
        ]),
        outcome(act),
        held.messages.map((one) =>
          message(one, h("div", { class: "buttons" }, h("button", { type: "button", class: "danger", disabled: act.busy, onClick: () => remove(one) }, "Delete")))),
      ]);
  },
};

export const Messages = {
  props: ["name"],
  setup: (props) => () => {
    const parts = [
      may("manage") && may("receive") ? h(Peek, { name: props.name }) : null,
      may("send") ? h(Send, { name: props.name }) : null,
      may("receive") ? h(Receive, { name: props.name }) : null,
    ];
    return parts.some(Boolean) ? parts : h("p", { class: "empty" }, "Your key may neither send nor receive messages: it takes the scopes “send” and “receive”.");
  },
};
