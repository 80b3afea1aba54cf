// The list of queues.

import { administers, call, may, queuePath, session } from "../api.js";
import { queueLink } from "../links.js";
import { bytes, clockTime, count, duration, money, rate } from "../text.js";
import { Dialog, Field, failure, input, lateness, outcome, sparkline, table, useAct, useLive } from "../widgets.js";

const { h, reactive } = Vue;
const PAGE = 50;
const SAMPLES = 60;
const TYPING_MS = 250;
const SORTS = [["name", "name"], ["depth", "depth"], ["age", "oldest message"], ["rate", "messages sent"], ["stored", "stored bytes"]];
const COST = ["cost", "cost of this month"];
const STATES = [["any", "any"], ["waiting", "with available messages"], ["in_flight", "with messages in flight"], ["delayed", "with delayed messages"], ["empty", "empty"]];

const CreateQueue = {
  emits: ["close"],
  setup(_, { emit }) {
    const form = reactive({ name: "", type: "standard", dead: "", receives: "5" });
    const act = useAct();

    async function submit(event) {
      event.preventDefault();
      const fifo = form.type === "fifo";
      const name = fifo && !form.name.endsWith(".fifo") ? `${form.name}.fifo` : form.name;
      const attributes = fifo ? { FifoQueue: "true", ContentBasedDeduplication: "true" } : {};
      const made = await act.run(async () => {
        if (form.dead) {
          const target = await call("GET", queuePath(form.dead));
          attributes.RedrivePolicy = JSON.stringify({ deadLetterTargetArn: target.arn, maxReceiveCount: Number(form.receives) });
        }
        await call("POST", "queues", { json: { name, attributes } });
      });
      if (made) location.hash = queueLink(name);
    }
    return () =>
      h(Dialog, { title: "Create a queue", onClose: () => emit("close") }, () =>
        h("form", { onSubmit: submit }, [
          input(form, "name", "Name", { hint: "Letters, digits, - and _, at most 80 characters.", autocomplete: "off", spellcheck: "false", required: true, maxlength: 80 }),
          input(form, "type", "Type", { tag: "select", options: ["standard", "fifo"], hint: "FIFO queues keep the order within message groups and drop duplicates; their names end with .fifo." }),
          input(form, "dead", "Dead-letter queue (optional)", { hint: "The name of an existing queue, to which messages are moved that are received too often.", autocomplete: "off", spellcheck: "false" }),
          form.dead ? input(form, "receives", "Receives before a message is moved", { type: "number", min: 1, max: 1000, required: true }) : null,
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Create"),
            h("button", { type: "button", onClick: () => emit("close") }, "Cancel"),
          ]),
        ]),
      );
  },
};

/** For callers who cannot list queues. */
const OpenQueue = {
  setup() {
    const form = reactive({ name: "" });
    const submit = (event) => {
      event.preventDefault();
      location.hash = queueLink(form.name.trim());
    };
    return () => [
      h("p", "Your key cannot list queues, which takes the scope “manage”. Open a queue by its name."),
      h("form", { class: "line", onSubmit: submit }, [
        input(form, "name", "Name of the queue", { autocomplete: "off", spellcheck: "false", required: true }),
        h("button", { type: "submit", class: "primary" }, "Open"),
      ]),
    ];
  },
};

const List = {
  setup() {
    const view = reactive({ prefix: "", sort: "name", state: "any", tag: "", pages: [""], creating: false });
    const samples = new Map(); // by name: the latest depths
    const sorted = () => view.sort !== "name" || view.state !== "any" || view.tag !== "";
    const polled = useLive(asked, sampled);
    let typing = 0;

    function asked() {
      const state = view.state === "any" ? undefined : view.state;
      return { prefix: view.prefix, sort: sorted() ? (view.sort === "name" ? "depth" : view.sort) : undefined, state, tag: view.tag || undefined, after: view.pages.at(-1), limit: PAGE };
    }
    function sampled(page) {
      for (const { name, messages } of page.queues) {
        if (!messages) continue;
        const depths = samples.get(name) || [];
        samples.set(name, [...depths, messages.visible + messages.delayed + messages.in_flight].slice(-SAMPLES));
      }
      return page;
    }

    function search(event) {
      clearTimeout(typing);
      typing = setTimeout(change, TYPING_MS, { [event.target.name]: event.target.value.trim() });
    }
    function change(what) {
      Object.assign(view, { pages: [""], ...what });
      polled.data = null; // the rows of another list
      polled.refresh();
    }
    const turn = (pages) => change({ pages });
    const choice = (name, label, options) =>
      h(Field, { label }, {
        default: (bound) =>
          h("select", { ...bound, name, onChange: (event) => change({ [name]: event.target.value }) },
            options.map(([value, text]) => h("option", { value, selected: view[name] === value }, text))),
      });

    const link = (name) => h("a", { href: queueLink(name) }, h("bdi", name));
    const row = ({ name, messages, dead_letter_queue: dead, oldest_seconds: age, sent_per_second: sent, cost }) => ({
      key: name,
      cells: [
        link(name),
        count(messages?.visible),
        count(messages?.in_flight),
        count(messages?.delayed),
        bytes(messages?.stored_bytes),
        ...(polled.data.as_of ? [age === null ? "–" : duration(age), sent === null ? "–" : `${rate(sent)}/s`] : []),
        ...(view.sort === "cost" ? [cost ? money(cost.amount, cost.currency) : "–"] : []),
        sparkline(samples.get(name) || []),
        dead ? link(dead) : "–",
      ],
    });
    const columns = () => [
      ["Name", "name"], ["Available", "number"], ["In flight", "number"], ["Delayed", "number"], ["Stored", "number"],
      ...(polled.data.as_of ? [["Oldest", "number"], ["Sent", "number"]] : []),
      ...(view.sort === "cost" ? [["Cost", "number"]] : []),
      ["Depth, live", ""], ["Dead-letter queue", "name"],
    ];

    function content() {
      const { data } = polled;
      if (!data) return polled.error ? null : h("p", { role: "status" }, "Loading…");
      if (data.queues.length) return table("Queues", columns(), data.queues.map(row));
      if (view.tag) return h("p", { class: "empty", role: "status" }, "No such queue has this tag.");
      if (view.prefix || view.pages.length > 1 || view.state !== "any") return h("p", { class: "empty", role: "status" }, view.state === "any" ? "No queue’s name begins like this." : "No such queue is in this state.");
      return h("div", { class: "empty" }, [
        h("h2", "No queues yet"),
        h("p", "A queue holds messages until someone has received and deleted them. Create one, then send it a message from its page."),
        h("button", { type: "button", class: "primary", onClick: () => (view.creating = true) }, "Create the first queue"),
      ]);
    }

    return () => [
      h("div", { class: "line" }, [
        h("div", { class: "field" }, [
          h("label", { for: "search" }, "Names that begin with"),
          h("input", { id: "search", name: "prefix", type: "search", autocomplete: "off", spellcheck: "false", onInput: search }),
        ]),
        h(Field, { label: "With the tag" }, {
          default: (bound) => h("input", { ...bound, name: "tag", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "name or name=value", onInput: search }),
        }),
        choice("sort", "Sorted by", administers() ? [...SORTS, COST] : SORTS),
        choice("state", "In the state", STATES),
        h("button", { type: "button", class: "primary", onClick: () => (view.creating = true) }, "Create a queue"),
      ]),
      failure(polled.error),
      lateness(polled),
      content(),
      polled.data?.as_of ? h("p", { class: "hint" }, `Sorted by numbers as of ${clockTime(polled.data.as_of)}.`) : null,
      h("nav", { class: "buttons", "aria-label": "Pages of the list" }, [
        h("button", { type: "button", disabled: view.pages.length === 1, onClick: () => turn(view.pages.slice(0, -1)) }, "Previous"),
        h("button", { type: "button", disabled: !polled.data?.next, onClick: () => turn([...view.pages, polled.data.next]) }, "Next"),
      ]),
      view.creating ? h(CreateQueue, { onClose: () => (view.creating = false) }) : null,
    ];
  },
};

export const Queues = {
  setup: () => () => [
    h("h1", { tabindex: -1 }, session.account === session.caller.account ? "Queues" : `Queues of account ${session.account}`),
    h(may("manage") ? List : OpenQueue),
  ],
};
