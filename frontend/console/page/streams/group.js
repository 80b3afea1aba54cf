// A consumer group: its members, its offsets and lag; reset and delete.

import { call, mayStream } from "../api.js";
import { time } from "../body.js";
import { streamLink } from "../links.js";
import { count, visible } from "../text.js";
import { Confirm, failure, input, outcome, table, useAct, usePolled } from "../widgets.js";

const { h, reactive, shallowReactive } = Vue;
const SECONDS = 5;
const POSITION_COLUMNS = [["Stream", "name"], ["Partition", "number"], ["Offset", "number"], ["End", "number"], ["Lag", "number"], ["Committed", ""]];
const MEMBER_COLUMNS = [["Member", "name"], ["Client", ""], ["Host", ""]];

const groupPath = (name, rest = "") => `consumer-groups/${encodeURIComponent(name)}${rest}`;

const Reset = {
  props: ["name", "streams", "refresh"],
  setup(props) {
    const form = reactive({ stream: props.streams[0] || "", to: "earliest", offset: "", time: "", partition: "" });
    const act = useAct();
    const submit = (event) => {
      event.preventDefault();
      act.run(async () => {
        const json = { stream: form.stream.trim() };
        if (form.to === "offset") json.offset = Number(form.offset);
        else if (form.to === "time") json.timestamp = new Date(form.time).getTime() / 1000;
        else json.to = form.to;
        if (form.partition) json.partitions = [Number(form.partition)];
        const { offsets } = await call("POST", groupPath(props.name, "/reset"), { json });
        await props.refresh();
        return `The group goes on from ${offsets.map((one) => `${one.partition}:${count(one.offset)}`).join(", ")}.`;
      });
    };
    return () =>
      h("section", { "aria-labelledby": "reset" }, [
        h("h2", { id: "reset" }, "Reset offsets"),
        h("p", "Only while the group has no members: stop its consumers first."),
        h("form", { onSubmit: submit }, [
          h("div", { class: "line" }, [
            input(form, "stream", "Stream", { required: true, autocomplete: "off" }),
            input(form, "partition", "Partition (empty: all)", { type: "number", min: 0 }),
            input(form, "to", "To", { tag: "select", options: ["earliest", "latest", "offset", "time"] }),
            form.to === "offset" ? input(form, "offset", "Offset", { type: "number", min: 0, required: true }) : null,
            form.to === "time" ? input(form, "time", "Time (your zone)", { type: "datetime-local", step: 1, required: true }) : null,
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Reset"),
          ]),
          outcome(act),
        ]),
      ]);
  },
};

export const Group = {
  props: ["name"],
  setup(props) {
    const polled = usePolled((signal) => call("GET", groupPath(props.name), { signal }), SECONDS);
    const view = shallowReactive({ deleting: false });
    const position = (one) => ({
      key: `${one.stream}/${one.partition}`,
      cells: [
        h("a", { href: streamLink(one.stream) }, h("bdi", one.stream)), String(one.partition), count(one.offset), count(one.end_offset), count(one.lag),
        [time(one.committed), one.metadata ? h("small", visible(one.metadata)) : null],
      ],
    });
    const member = (one) => ({ key: one.id, cells: [visible(one.instance || one.id), visible(one.client), one.host] });

    function content(data) {
      return [
        h("dl", { class: "facts" }, [
          ["State", data.state],
          ["Assignor", data.assignor || "–"],
          ["Lag", count(data.positions.reduce((all, { lag }) => (all === null || lag === null ? null : all + lag), 0))],
        ].map(([label, value]) => h("div", [h("dt", label), h("dd", value)]))),
        h("h2", "Offsets"),
        data.positions.length ? table("Offsets", POSITION_COLUMNS, data.positions.map(position)) : h("p", "The group has committed no offset."),
        h("h2", "Members"),
        data.members.length ? table("Members", MEMBER_COLUMNS, data.members.map(member)) : h("p", "No consumer is a member now."),
        mayStream("read") || mayStream("manage")
          ? h(Reset, { name: props.name, streams: [...new Set(data.positions.map(({ stream }) => stream))], refresh: polled.refresh })
          : null,
        mayStream("manage") ? h("button", { type: "button", class: "danger", onClick: () => (view.deleting = true) }, "Delete the group…") : null,
      ];
    }
    return () => [
      h("h1", { tabindex: -1 }, h("bdi", props.name)),
      failure(polled.error),
      polled.data ? content(polled.data) : polled.error ? null : h("p", { role: "status" }, "Loading…"),
      view.deleting
        ? h(Confirm, {
            name: props.name, title: "Delete the group", verb: "Delete the group", text: "The group is deleted with its offsets. This cannot be undone.",
            work: () => call("DELETE", groupPath(props.name)),
            onClose: () => (view.deleting = false),
            onDone: () => (location.hash = "#/streams"),
          })
        : null,
    ];
  },
};
