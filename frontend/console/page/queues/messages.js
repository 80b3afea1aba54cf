// Messages of a queue: peek, send, receive, delete.

import { Refusal, call, may, queuePath, session } from "../api.js";
import { Body, time } from "../body.js";
import { queueLink } from "../links.js";
import { addAttribute, attributeFields, attributeRows, attributesOf } from "../message_attributes.js";
import { bytes, count, visible } from "../text.js";
import { input, outcome, useAct } from "../widgets.js";

const { computed, h, nextTick, onUnmounted, reactive, shallowReactive, watch } = Vue;
const named = (arn) => arn?.split(":").at(-1) || "";

/** A trace id, as a link where the service has an address of traces. */
function trace(id) {
  const shown = h("code", id), template = session.caller.trace_url;
  if (!/^https?:\/\//.test(template)) return shown;
  return h("a", { href: template.replace("{trace_id}", encodeURIComponent(id)), target: "_blank", rel: "noopener noreferrer" }, [shown, " (opens a new tab)"]);
}

/** A message as it was peeked or received. */
function message(one, acts) {
  const facts = [
    ["Sent", time(one.sent)],
    ["Receives", count(one.receives)],
    one.state && ["State", [one.state.replace("_", " "), one.due ? [", until ", time(one.due)] : ""]],
    one.group && ["Group", visible(one.group)],
    one.deduplication_id && ["Deduplication id", visible(one.deduplication_id)],
    one.sequence_number && ["Sequence number", one.sequence_number],
    one.origin && ["Came from", h("a", { href: queueLink(named(one.origin), "dead-letters") }, h("bdi", named(one.origin)))],
    one.sender && ["Sender", visible(one.sender)],
    one.trace_id && ["Trace", trace(one.trace_id)],
    one.trace_header && ["Trace header", visible(one.trace_header)],
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

const FOLLOW_MS = 1500;
const FOLLOWED_AT_ONCE = 100;
const FOLLOWED_MAX = 500;
const SEARCHED_AT_ONCE = 2000;
const MOVED_AT_ONCE = 100;

/** Seconds of a time in the viewer's zone, as a field has it; undefined: it is empty. */
const secondsOf = (text) => (text ? new Date(text).getTime() / 1000 : undefined);

/** Messages that were sent in this time. */
function sentBetween(messages, from, until) {
  const first = secondsOf(from) ?? -Infinity, last = secondsOf(until) ?? Infinity;
  return messages.filter(({ sent }) => sent >= first && sent <= last);
}

/** Messages that have this text in their id, group, body or an attribute. */
function containing(messages, text) {
  const wanted = text.toLowerCase();
  const texts = (one) => [one.id, one.group, one.body, ...Object.values(one.attributes).map(({ value }) => value)];
  return messages.filter((one) => texts(one).some((part) => part?.toLowerCase().includes(wanted)));
}

const Peek = {
  props: ["name", "edit"],
  setup(props) {
    const form = reactive({ limit: "10", search: "", from: "", until: "", destination: "" });
    const found = shallowReactive({ messages: null, searched: 0, next: "", following: false, failed: "" });
    const act = useAct();
    const matches = (messages) => sentBetween(containing(messages, form.search), form.from, form.until);
    const matching = computed(() => matches(found.messages || []));
    const acts = (one) =>
      h("div", { class: "buttons" }, [
        may("send") && one.body !== null ? h("button", { type: "button", onClick: () => props.edit(one) }, "Edit and send again") : null,
        h("button", { type: "button", disabled: act.busy, onClick: () => move([one]) }, "Move"),
      ]);
    const path = queuePath(props.name, "/peek");
    const peek = (event) => {
      event.preventDefault();
      unfollow();
      act.run(async () => {
        const page = await call("GET", path, { query: { limit: form.limit } });
        Object.assign(found, { messages: page.messages, searched: page.messages.length, next: page.next });
      });
    };
    /** Moves messages; the service moves each exactly once, and only those that could be received now. */
    const move = (messages) =>
      act.run(async () => {
        let moved = 0;
        for (let at = 0; at < messages.length; at += MOVED_AT_ONCE) {
          const asked = { places: messages.slice(at, at + MOVED_AT_ONCE).map(({ place }) => place) };
          if (form.destination.trim()) asked.destination = form.destination.trim();
          const left = new Set((await call("POST", queuePath(props.name, "/messages/move"), { json: asked })).moved);
          moved += left.size;
          found.messages = found.messages.filter(({ place }) => !left.has(place));
          found.searched -= left.size;
        }
        const staying = messages.length - moved;
        const stay = "could not be moved: a message must be available, and needs a destination if it came from no queue.";
        if (staying) return `Moved: ${count(moved)}. ${count(staying)} ${stay}`;
        return moved === 1 ? "1 message was moved." : `${count(moved)} messages were moved.`;
      });
    /** Reads on until a page has messages that match, and keeps those alone. */
    const searchOn = () =>
      act.run(async () => {
        unfollow();
        for (let read = 0, more = []; read < SEARCHED_AT_ONCE && !more.length; ) {
          const page = await call("GET", path, { query: { limit: FOLLOWED_AT_ONCE, after: found.next } });
          if (!page.messages.length) return "There are no further messages.";
          more = matches(page.messages);
          read += page.messages.length;
          Object.assign(found, { messages: [...found.messages, ...more].slice(-FOLLOWED_MAX), searched: found.searched + page.messages.length, next: page.next });
        }
        return `${count(found.searched)} messages were searched.`;
      });

    /** Shows messages as they are stored, from the last one that was peeked on; goes on after an error. */
    let timer = 0;
    async function follow() {
      let pause = FOLLOW_MS;
      try {
        const page = await call("GET", path, { query: { limit: FOLLOWED_AT_ONCE, after: found.next || "latest" } });
        if (!found.following) return;
        const messages = [...(found.messages || []), ...page.messages].slice(-FOLLOWED_MAX);
        Object.assign(found, { messages, searched: found.searched + page.messages.length, next: page.next, failed: "" });
      } catch (error) {
        if (!(error instanceof Refusal)) throw error;
        found.failed = error.message;
        pause = Math.max(error.retryAfter * 1000, 5 * FOLLOW_MS);
      }
      if (found.following) timer = setTimeout(follow, pause);
    }
    function unfollow() {
      clearTimeout(timer);
      Object.assign(found, { following: false, failed: "" });
    }
    function toggle() {
      if (found.following) return unfollow();
      found.following = true;
      follow();
    }
    onUnmounted(unfollow);
    return () =>
      h("section", { "aria-labelledby": "peek" }, [
        h("h2", { id: "peek" }, "Peek"),
        h("p", "Shows the first messages without receiving them: nothing changes for consumers."),
        h("form", { class: "line", onSubmit: peek }, [
          input(form, "limit", "Messages", { tag: "select", options: ["10", "50", "100"] }),
          h("button", { type: "submit", class: "primary", disabled: act.busy }, "Peek"),
          h("button", { type: "button", "aria-pressed": String(found.following), onClick: toggle }, found.following ? "Stop following" : "Follow new messages"),
        ]),
        found.messages?.length
          ? h("div", { class: "line" }, [
              input(form, "search", "Containing", { type: "search", autocomplete: "off" }),
              input(form, "from", "Sent from", { type: "datetime-local", step: 1 }),
              input(form, "until", "Sent until", { type: "datetime-local", step: 1 }),
              h("button", { type: "button", disabled: act.busy, onClick: searchOn }, "Search on"),
            ])
          : null,
        found.messages?.length
          ? h("div", { class: "line" }, [
              input(form, "destination", "Move to (empty: where they came from)", { autocomplete: "off", spellcheck: "false" }),
              h("button", { type: "button", disabled: act.busy || !matching.value.length, onClick: () => move(matching.value) }, `Move the ${count(matching.value.length)} shown`),
            ])
          : null,
        outcome(act),
        h("p", { class: "error", role: "alert" }, found.failed),
        found.messages &&
          h("p", { role: "status" }, found.messages.length
            ? `${count(matching.value.length)} of ${count(found.searched)} messages.`
            : found.following ? "Waiting for messages." : "The queue is empty. Send it a message below."),
        matching.value.map((one) => message(one, acts(one))),
      ]);
  },
};

const Send = {
  props: ["name", "draft"],
  setup(props) {
    const fifo = props.name.endsWith(".fifo");
    const form = reactive({ body: "", delay: "", group: fifo ? "default" : "", deduplication: "" });
    const attributes = reactive({ rows: [] });
    const act = useAct();
    watch(() => props.draft.message, (one) => {
      Object.assign(form, { body: one.body, group: one.group || (fifo ? "default" : ""), deduplication: "", delay: "" });
      attributes.rows = attributeRows(one.attributes);
      nextTick(() => {
        const field = document.querySelector("#send ~ form [name=body]");
        field.focus();
        field.scrollIntoView({ block: "center" });
      });
    });

    function submit(event) {
      event.preventDefault();
      act.run(async () => {
        const json = { body: form.body, attributes: attributesOf(attributes.rows) };
        if (form.delay) json.delay_seconds = Number(form.delay);
        if (form.group) json.group = form.group;
        if (form.deduplication) json.deduplication_id = form.deduplication;
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
          attributeFields(attributes.rows),
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Send"),
            addAttribute(attributes.rows),
          ]),
        ]),
      ]);
  },
};

const Receive = {
  props: ["name"],
  setup(props) {
    const form = reactive({ max: "1", visibility: "", search: "" });
    const held = shallowReactive({ messages: [] });
    const act = useAct();
    const matching = computed(() => containing(held.messages, form.search));

    const receive = (event) => {
      event.preventDefault();
      act.run(async () => {
        const query = { max: form.max, visibility: form.visibility, wait: 0 };
        const answer = await call("GET", queuePath(props.name, "/messages"), { query });
        if (!answer) return "No message is available now.";
        held.messages = [...held.messages, ...answer.messages];
        return `Received: ${count(answer.messages.length)}`;
      });
    };
    async function drop(one) {
      await call("DELETE", queuePath(props.name, "/messages"), { query: { receipt_handle: one.receipt_handle } });
      held.messages = held.messages.filter((other) => other !== one);
    }
    const remove = (one) =>
      act.run(async () => {
        await drop(one);
        return `Deleted: ${one.id}`;
      });
    const acts = (one) =>
      h("div", { class: "buttons" }, [
        h("button", { type: "button", class: "danger", disabled: act.busy, onClick: () => remove(one) }, "Delete"),
      ]);

    return () =>
      h("section", { "aria-labelledby": "receive" }, [
        h("h2", { id: "receive" }, "Receive"),
        h("p", "Takes messages as a consumer does: nobody else gets them until the visibility timeout ends, and each receive counts towards the dead-letter queue."),
        h("form", { class: "line", onSubmit: receive }, [
          input(form, "max", "Messages", { type: "number", min: 1, max: 10, required: true }),
          input(form, "visibility", "Visibility timeout (seconds; empty: the queue’s)", { type: "number", min: 0, max: 43_200 }),
          h("button", { type: "submit", class: "primary", disabled: act.busy }, "Receive"),
        ]),
        outcome(act),
        held.messages.length ? h("div", { class: "line" }, [input(form, "search", "Containing", { type: "search", autocomplete: "off" })]) : null,
        matching.value.map((one) => message(one, acts(one))),
      ]);
  },
};

export const Messages = {
  props: ["name"],
  setup(props) {
    const draft = shallowReactive({ message: null });
    const edit = (one) => (draft.message = { ...one });
    return () => {
      const parts = [
        may("manage") && may("receive") ? h(Peek, { name: props.name, edit }) : null,
        may("send") ? h(Send, { name: props.name, draft }) : null,
        may("receive") ? h(Receive, { name: props.name }) : null,
      ];
      return parts.some(Boolean) ? parts : h("p", { class: "empty" }, "Your key may neither send nor receive messages: it takes the scopes “send” and “receive”.");
    };
  },
};
