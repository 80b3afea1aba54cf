// The lists of streams and consumer groups.

import { call, mayStream, session } from "../api.js";
import { groupLink, streamLink } from "../links.js";
import { count, localTime } from "../text.js";
import { Dialog, failure, input, outcome, table, useAct, useLoaded } from "../widgets.js";

const { h, reactive } = Vue;
const PAGE = 50;
const TYPING_MS = 250;

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

/** A list by name, searched and paged by the service; `show` makes it of a page. */
const Named = {
  props: ["label", "path", "show"],
  setup(props) {
    const view = reactive({ prefix: "", pages: [""] });
    let typing = 0;
    const state = useLoaded(() => call("GET", props.path, { query: { prefix: view.prefix, after: view.pages.at(-1), limit: PAGE } }));
    const turn = (change) => {
      Object.assign(view, change);
      state.refresh();
    };
    const search = (event) => {
      const prefix = event.target.value.trim();
      clearTimeout(typing);
      typing = setTimeout(turn, TYPING_MS, { prefix, pages: [""] });
    };
    return () => [
      h("div", { class: "field" }, [
        h("label", { for: `${props.path}-search` }, `${props.label} that begin with`),
        h("input", { id: `${props.path}-search`, type: "search", autocomplete: "off", spellcheck: "false", onInput: search }),
      ]),
      failure(state.error),
      state.data ? props.show(state.data, view.prefix !== "" || view.pages.length > 1) : state.error ? null : h("p", { role: "status" }, "Loading…"),
      view.pages.length > 1 || state.data?.next
        ? h("nav", { class: "buttons", "aria-label": `Pages of ${props.label}` }, [
            h("button", { type: "button", disabled: view.pages.length === 1, onClick: () => turn({ pages: view.pages.slice(0, -1) }) }, "Previous"),
            h("button", { type: "button", disabled: !state.data?.next, onClick: () => turn({ pages: [...view.pages, state.data.next] }) }, "Next"),
          ])
        : null,
    ];
  },
};

const STREAM_COLUMNS = [["Name", "name"], ["Partitions", "number"], ["Created", ""]];
const GROUP_COLUMNS = [["Name", "name"], ["State", ""]];

const streams = ({ streams: found }, searched) =>
  found.length
    ? table("Streams", STREAM_COLUMNS, found.map((one) => ({
        key: one.name,
        cells: [h("a", { href: streamLink(one.name) }, h("bdi", one.name)), count(one.partitions), localTime(one.created)],
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
      h(Named, { label: "Streams", path: "streams", show: streams }),
      mayStream("read") || mayStream("manage")
        ? h("section", { "aria-labelledby": "groups" }, [h("h2", { id: "groups" }, "Consumer groups"), h(Named, { label: "Groups", path: "consumer-groups", show: groups })])
        : null,
      view.creating ? h(CreateStream, { onClose: () => (view.creating = false) }) : null,
    ];
  },
};
