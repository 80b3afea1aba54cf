// The pages of one stream: partitions, records, consumer groups, settings.

import { call, mayStream, streamPath } from "../api.js";
import { time } from "../body.js";
import { groupLink, streamLink } from "../links.js";
import { bytes, count } from "../text.js";
import { Confirm, failure, input, loaded, outcome, tabLinks, table, useAct, useLoaded, usePolled } from "../widgets.js";
import { Records } from "./records.js";

const { h, reactive, shallowReactive } = Vue;
const SECONDS = 5;
const GROUPS_MAX = 50;
const PARTITION_COLUMNS = [["Partition", "number"], ["First offset", "number"], ["End offset", "number"], ["Records", "number"], ["Stored", "number"]];
const GROUP_COLUMNS = [["Group", "name"], ["State", ""], ["Members", "number"], ["Lag", "number"]];

const sum = (numbers) => numbers.reduce((all, one) => (all === null || one === null ? null : all + one), 0);
const kept = (one) => (one.end_offset === null ? null : one.end_offset - one.first_offset);

const Partitions = {
  props: ["name"],
  setup(props) {
    const polled = usePolled((signal) => call("GET", streamPath(props.name), { signal }), SECONDS);
    const row = (one) => ({
      key: one.partition,
      cells: [String(one.partition), count(one.first_offset), count(one.end_offset), count(kept(one)), bytes(one.stored_bytes)],
    });
    return () => {
      const { data } = polled;
      if (!data) return failure(polled.error) || h("p", { role: "status" }, "Loading…");
      return [
        failure(polled.error),
        h("dl", { class: "facts" }, [
          ["Records", count(sum(data.partitions.map(kept)))],
          ["Stored", bytes(sum(data.partitions.map((one) => one.stored_bytes)))],
          ["Created", time(data.created)],
          ["ARN", h("code", data.arn)],
          ["Id in Kafka’s protocol", h("code", data.topic_id)],
        ].map(([label, value]) => h("div", [h("dt", label), h("dd", value)]))),
        table("Partitions", PARTITION_COLUMNS, data.partitions.map(row)),
      ];
    };
  },
};

const Groups = {
  props: ["name"],
  setup(props) {
    const polled = usePolled(async (signal) => {
      const { groups, next } = await call("GET", "consumer-groups", { query: { limit: GROUPS_MAX }, signal });
      const described = await Promise.all(groups.map(({ name }) => call("GET", `consumer-groups/${encodeURIComponent(name)}`, { signal })));
      const used = described
        .map((one) => ({ ...one, positions: one.positions.filter(({ stream }) => stream === props.name) }))
        .filter(({ positions }) => positions.length);
      return { used, more: Boolean(next) };
    }, SECONDS);
    const row = (one) => ({
      key: one.name,
      cells: [h("a", { href: groupLink(one.name) }, h("bdi", one.name)), one.state, count(one.members.length), count(sum(one.positions.map(({ lag }) => lag)))],
    });
    return () => [
      failure(polled.error),
      polled.data?.used.length
        ? table("Consumer groups", GROUP_COLUMNS, polled.data.used.map(row))
        : polled.data ? h("p", { class: "empty", role: "status" }, "No consumer group has a position in this stream.") : null,
      polled.data?.more ? h("p", { class: "hint" }, `The first ${GROUPS_MAX} groups of the account were searched.`) : null,
    ];
  },
};

const Settings = {
  props: ["name"],
  setup(props) {
    const form = reactive({ partitions: "", rows: [] });
    const view = shallowReactive({ deleting: false });
    const act = useAct();
    const state = useLoaded(async () => {
      const shown = await call("GET", streamPath(props.name));
      form.partitions = String(shown.partitions.length);
      form.rows = Object.entries(shown.settings).map(([name, value]) => ({ name, value }));
      return shown;
    });
    const save = (event) => {
      event.preventDefault();
      act.run(async () => {
        const wanted = Object.fromEntries(form.rows.filter(({ name }) => name).map(({ name, value }) => [name.trim(), value]));
        const removed = Object.keys(state.data.settings).filter((name) => !Object.hasOwn(wanted, name)).map((name) => [name, null]);
        await call("PATCH", streamPath(props.name), { json: { partitions: Number(form.partitions), settings: { ...wanted, ...Object.fromEntries(removed) } } });
        await state.refresh();
        return "Saved.";
      });
    };
    return () => [
      loaded(state, (shown) =>
        h("form", { onSubmit: save }, [
          input(form, "partitions", "Partitions", { type: "number", min: shown.partitions.length, required: true, hint: "There can be more, and never fewer." }),
          h("h2", "Settings"),
          form.rows.length ? null : h("p", "All settings have their defaults. Their names are those of Kafka, such as retention.ms."),
          form.rows.map((row, at) =>
            h("div", { class: "line", key: at }, [
              input(row, "name", `Setting ${at + 1}`, { autocomplete: "off", spellcheck: "false" }),
              input(row, "value", `Value of setting ${at + 1}`, { autocomplete: "off", spellcheck: "false" }),
              h("button", { type: "button", "aria-label": `Remove setting ${at + 1}`, onClick: () => form.rows.splice(at, 1) }, "Remove"),
            ])),
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "button", onClick: () => form.rows.push({ name: "", value: "" }) }, "Add a setting"),
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Save"),
            h("button", { type: "button", class: "danger", onClick: () => (view.deleting = true) }, "Delete…"),
          ]),
        ])),
      view.deleting
        ? h(Confirm, {
            name: props.name, title: "Delete the stream", verb: "Delete the stream", text: "The stream is deleted with all its records. This cannot be undone.",
            work: () => call("DELETE", streamPath(props.name)),
            onClose: () => (view.deleting = false),
            onDone: () => (location.hash = "#/streams"),
          })
        : null,
    ];
  },
};

const TABS = [
  ["", "Partitions", Partitions, () => true],
  ["records", "Records", Records, () => mayStream("read") || mayStream("write")],
  ["groups", "Consumer groups", Groups, () => mayStream("read") || mayStream("manage")],
  ["settings", "Settings", Settings, () => mayStream("manage")],
];

export const Stream = {
  props: ["name", "tab"],
  setup: (props) => () => {
    const tabs = TABS.filter(([, , , shown]) => shown());
    const [tab, , page] = tabs.find(([name]) => name === props.tab) || tabs[0];
    return [
      h("h1", { tabindex: -1 }, h("bdi", props.name)),
      tabLinks("Pages of the stream", tabs, tab, (name) => streamLink(props.name, name)),
      h(page, { key: tab, name: props.name }),
    ];
  },
};
