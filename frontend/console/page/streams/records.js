// Records of a stream: peek by offset or time, and publish.

import { call, mayStream, streamPath } from "../api.js";
import { Body, time } from "../body.js";
import { count, visible } from "../text.js";
import { input, outcome, useAct } from "../widgets.js";

const { h, reactive, shallowReactive } = Vue;
const PAGE = 50;
const STARTS = ["earliest", "latest", "offset", "time"];

const part = (one, member) => (one[member] ?? one[`${member}_base64`] ?? null);

const record = (one) =>
  h("article", { class: "message", key: `${one.partition}:${one.offset}`, "aria-label": `Record ${one.offset} of partition ${one.partition}` }, [
    h("h3", `Partition ${one.partition}, offset ${count(one.offset)}`),
    h("dl", { class: "facts" }, [
      one.timestamp === null ? null : h("div", [h("dt", "Time"), h("dd", time(one.timestamp))]),
      part(one, "key") === null ? null : h("div", [h("dt", "Key"), h("dd", visible(part(one, "key")))]),
      one.headers.map((header) => h("div", [h("dt", [h("bdi", visible(header.name))]), h("dd", visible(part(header, "value") ?? "–"))])),
    ]),
    part(one, "value") === null ? h("p", { class: "hint" }, "No value (a tombstone).") : h(Body, { text: part(one, "value"), label: "Value" }),
  ]);

const Peek = {
  props: ["name"],
  setup(props) {
    const form = reactive({ partition: "", start: "earliest", offset: "", time: "", key: "", header: "" });
    const view = shallowReactive({ records: null, next: "" });
    const act = useAct();

    function start() {
      if (form.start === "offset") return { offset: form.offset };
      if (form.start === "time") return { timestamp: new Date(form.time).getTime() / 1000 };
      return { offset: form.start };
    }
    const read = (position) =>
      act.run(async () => {
        const query = { ...position, partition: form.partition, key: form.key || undefined, header: form.header.trim(), limit: PAGE };
        const page = await call("GET", streamPath(props.name, "/records"), { query });
        view.records = page ? page.records : [];
        view.next = page ? page.next : position.after || "";
        if (page && !page.records.length) return "None of these records matched. Go on to search the following ones.";
        return page ? "" : "There are no records here, or no more.";
      });
    const submit = (event) => {
      event.preventDefault();
      read(start());
    };
    return () =>
      h("section", { "aria-labelledby": "peek" }, [
        h("h2", { id: "peek" }, "Peek"),
        h("p", "Shows records without a consumer group: nothing changes for consumers."),
        h("form", { onSubmit: submit }, [
          h("div", { class: "line" }, [
            input(form, "start", "From", { tag: "select", options: STARTS }),
            form.start === "offset" ? input(form, "offset", "Offset", { type: "number", min: 0, required: true }) : null,
            form.start === "time" ? input(form, "time", "Time (your zone)", { type: "datetime-local", step: 1, required: true }) : null,
            input(form, "partition", "Partition (empty: all)", { type: "number", min: 0, required: form.start === "offset" }),
            input(form, "key", "Only with the key", { autocomplete: "off" }),
            input(form, "header", "Only with the header", { autocomplete: "off", placeholder: "NAME or NAME=VALUE" }),
          ]),
          h("div", { class: "buttons" }, [
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Peek"),
            h("button", { type: "button", disabled: act.busy || !view.next, onClick: () => read({ after: view.next }) }, "Next records"),
          ]),
        ]),
        outcome(act),
        view.records?.map(record),
      ]);
  },
};

const Publish = {
  props: ["name"],
  setup(props) {
    const form = reactive({ key: "", value: "", partition: "" });
    const act = useAct();
    const submit = (event) => {
      event.preventDefault();
      act.run(async () => {
        const json = { value: form.value };
        if (form.key) json.key = form.key;
        if (form.partition) json.partition = Number(form.partition);
        const { records: [stored] } = await call("POST", streamPath(props.name, "/records"), { json });
        return `Stored in partition ${stored.partition} with the offset ${count(stored.offset)}.`;
      });
    };
    return () =>
      h("section", { "aria-labelledby": "publish" }, [
        h("h2", { id: "publish" }, "Publish"),
        h("form", { onSubmit: submit }, [
          input(form, "value", "Value", { tag: "textarea", rows: 5, spellcheck: "false" }),
          h("div", { class: "line" }, [
            input(form, "key", "Key (optional)", { autocomplete: "off" }),
            input(form, "partition", "Partition (empty: by the key)", { type: "number", min: 0 }),
          ]),
          outcome(act),
          h("button", { type: "submit", class: "primary", disabled: act.busy }, "Publish"),
        ]),
      ]);
  },
};

export const Records = {
  props: ["name"],
  setup: (props) => () => [
    mayStream("read") ? h(Peek, { name: props.name }) : null,
    mayStream("write") ? h(Publish, { name: props.name }) : null,
  ],
};
