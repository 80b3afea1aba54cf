// The lists of streams and consumer groups.

import { call, mayStream, session } from "../api.js";
import { time } from "../body.js";
import { groupLink, streamLink } from "../links.js";
import { NamedList } from "../named_list.js";
import { count } from "../text.js";
import { Dialog, input, outcome, table, useAct } from "../widgets.js";

const { h, reactive } = Vue;

const CreateStream = {
  emits: ["close"],
  setup(_, { emit }) {
    const form = reactive({ name: "", partitions: "1", days: "" });
    const act = useAct();
    async function submit(event) {
      event.preventDefault();
      const settings = form.days ? { "retention.ms": Math.round(Number(form.days) * 86_400_000) } : {};
      const made = await act.run(() => call("POST", "streams", { json: { name: form.name, partitions: Number(form.partitions), settings } }).then(() => ""));
      if (made) location.hash = streamLink(form.name);
    }
    return () =>
      h(Dialog, { title: "Create a stream", onClose: () => emit("close") }, () =>
        h("form", { onSubmit: submit }, [
          input(form, "name", "Name", { hint: "Letters, digits, periods, - and _.", autocomplete: "off", spellcheck: "false", required: true, maxlength: 249 }),
          input(form, "partitions", "Partitions", { type: "number", min: 1, required: true, hint: "Records of one key stay in one partition, in order." }),
          input(form, "days", "Retention in days (empty: the default)", { type: "number", min: 0, step: "any" }),
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Create"),
            h("button", { type: "button", onClick: () => emit("close") }, "Cancel"),
          ]),
        ]));
  },
};

const STREAM_COLUMNS = [["Name", "name"], ["Partitions", "number"], ["Created", ""]];
const GROUP_COLUMNS = [["Name", "name"], ["State", ""]];

const streams = ({ streams: found }, searched) =>
  found.length
    ? table("Streams", STREAM_COLUMNS, found.map((one) => ({
        key: one.name,
        cells: [h("a", { href: streamLink(one.name) }, h("bdi", one.name)), count(one.partitions), time(one.created)],
      })))
    : h("p", { class: "empty", role: "status" }, searched ? "No stream’s name begins like this." : "No streams yet. A stream keeps records for consumer groups, which read them at their own pace; it is a topic of Kafka’s protocol.");
const groups = ({ groups: found }, searched) =>
  found.length
    ? table("Consumer groups", GROUP_COLUMNS, found.map((one) => ({ key: one.name, cells: [h("a", { href: groupLink(one.name) }, h("bdi", one.name)), one.state] })))
    : h("p", { role: "status" }, searched ? "No group’s name begins like this." : "No consumer groups yet. A group is there once it has committed an offset, or has members.");

export const Streams = {
  setup() {
    const view = reactive({ creating: false });
    return () => [
      h("h1", { tabindex: -1 }, session.account === session.caller.account ? "Streams" : `Streams of account ${session.account}`),
      mayStream("manage") ? h("button", { type: "button", class: "primary", onClick: () => (view.creating = true) }, "Create a stream") : null,
      h(NamedList, { label: "Streams", path: "streams", show: streams }),
      mayStream("read") || mayStream("manage")
        ? h("section", { "aria-labelledby": "groups" }, [h("h2", { id: "groups" }, "Consumer groups"), h(NamedList, { label: "Groups", path: "consumer-groups", show: groups })])
        : null,
      view.creating ? h(CreateStream, { onClose: () => (view.creating = false) }) : null,
    ];
  },
};
