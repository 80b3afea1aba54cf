// All tenants: create, limit, suspend, resume, delete.

import { call, session, showAccount } from "../api.js";
import { time } from "../body.js";
import { bytes, count, localTime } from "../text.js";
import { Confirm, Dialog, failure, input, outcome, table, useAct, useLoaded } from "../widgets.js";

const { h, reactive, shallowReactive } = Vue;
const PAGE = 100;
const COLUMNS = [["Account", ""], ["Name", "name"], ["State", ""], ["Created", ""], ["", ""]];
const RATES = [["calls", "All calls"], ["send", "Sends"], ["receive", "Receives"], ["manage", "Other calls"], ["each_queue", "Calls to each queue"]];
const QUOTAS = [["queues", "Queues"], ["topics", "Streams"], ["topic_partitions", "Partitions of streams"], ["keys", "Keys"], ["stored_bytes", "Stored bytes"], ["connections", "Calls at the same time"], ["long_polls", "Waiting receives"]];

const own = { account: undefined };
const tenantPath = (account, rest = "") => `tenants/${account}${rest}`;
const asRate = (text) => {
  const [perSecond, burst] = text.split(":").map(Number);
  return { per_second: perSecond, burst: burst || Math.max(1, Math.ceil(perSecond)) };
};

const LimitsDialog = {
  props: ["account"],
  emits: ["close"],
  setup(props, { emit }) {
    const form = reactive(Object.fromEntries([...RATES, ...QUOTAS].map(([name]) => [name, ""])));
    let before = {};
    const act = useAct();
    const state = useLoaded(async () => {
      const limits = await call("GET", tenantPath(props.account, "/limits"), { query: own });
      for (const [name] of RATES) form[name] = limits[name] ? `${limits[name].per_second}:${limits[name].burst}` : "";
      for (const [name] of QUOTAS) form[name] = limits[name] === null ? "" : String(limits[name]);
      before = { ...form };
      return limits;
    });
    const save = (event) => {
      event.preventDefault();
      act.run(async () => {
        const changed = Object.keys(before).filter((name) => String(form[name]).trim() !== before[name]);
        const rates = RATES.map(([name]) => name);
        const value = (name, text) => (text === "" ? null : rates.includes(name) ? asRate(text) : Number(text));
        await call("PATCH", tenantPath(props.account, "/limits"), {
          query: own, json: Object.fromEntries(changed.map((name) => [name, value(name, String(form[name]).trim())])),
        });
        emit("close");
      });
    };
    return () =>
      h(Dialog, { title: `Limits of ${props.account}`, onClose: () => emit("close") }, () => [
        failure(state.error),
        state.data &&
          h("form", { onSubmit: save }, [
            RATES.map(([name, label]) => input(form, name, label, { hint: "Calls a second and at once, such as 50:200. Empty: no limit.", pattern: "[0-9.]+(:[0-9]+)?", autocomplete: "off" })),
            QUOTAS.map(([name, label]) => input(form, name, label, { type: "number", min: 0, autocomplete: "off" })),
            outcome(act),
            h("div", { class: "buttons" }, [
              h("button", { type: "submit", class: "primary", disabled: act.busy }, "Save limits"),
              h("button", { type: "button", onClick: () => emit("close") }, "Cancel"),
            ]),
          ]),
      ]);
  },
};

export const Tenants = {
  setup() {
    const view = shallowReactive({ pages: [""], limits: "", suspending: "", deleting: null, stored: {} });
    const form = reactive({ name: "", account: "" });
    const act = useAct();
    const state = useLoaded(() => call("GET", "tenants", { query: { ...own, after: view.pages.at(-1), limit: PAGE } }));

    const turn = (pages) => {
      view.pages = pages;
      state.refresh();
    };
    const create = (event) => {
      event.preventDefault();
      act.run(async () => {
        const json = { name: form.name.trim() };
        if (form.account.trim()) json.account = form.account.trim();
        const made = await call("POST", "tenants", { query: own, json });
        await state.refresh();
        return `The tenant ${made.account} was made. Show its account, and make a key for its administrator there.`;
      });
    };
    const change = (account, verb, done) =>
      act.run(async () => {
        await call("POST", tenantPath(account, `/${verb}`), { query: own });
        await state.refresh();
        return done;
      });
    const weigh = (account) =>
      act.run(async () => {
        const { stored_bytes: stored } = await call("GET", tenantPath(account), { query: own });
        return `The queues of ${account} store ${stored === null ? "an unknown number of bytes" : bytes(stored)}.`;
      });
    const button = (label, account, onClick, kind) =>
      h("button", { type: "button", class: kind, disabled: act.busy, "aria-label": `${label} ${account}`, onClick }, label);
    const acts = ({ account, state: now, name }) => {
      if (now === "deleted" || now === "deleting") return "";
      return h("div", { class: "buttons" }, [
        button("Show", account, () => {
          showAccount(account);
          location.hash = "#/queues";
        }),
        button("Limits", account, () => (view.limits = account)),
        button("Stored", account, () => weigh(account)),
        account === session.caller.account ? null : [
          now === "active"
            ? button("Suspend…", account, () => (view.suspending = account), "danger")
            : button("Resume", account, () => change(account, "resume", `${account} is served again.`)),
          button("Delete…", account, () => (view.deleting = { account, name }), "danger"),
        ],
      ]);
    };
    const row = (one) => ({
      key: one.account,
      cells: [one.account, h("bdi", one.name), one.state, [time(one.created), one.deleted ? h("small", `deleted ${localTime(one.deleted)}`) : null], acts(one)],
    });

    return () => [
      failure(state.error),
      state.data
        ? [
            table("Tenants", COLUMNS, state.data.tenants.map(row)),
            h("nav", { class: "buttons", "aria-label": "Pages of the list" }, [
              h("button", { type: "button", disabled: view.pages.length === 1, onClick: () => turn(view.pages.slice(0, -1)) }, "Previous"),
              h("button", { type: "button", disabled: !state.data.next, onClick: () => turn([...view.pages, state.data.next]) }, "Next"),
            ]),
            h("p", { class: "hint" }, `${count(state.data.tenants.length)} tenants are on this page.`),
          ]
        : null,
      h("section", { "aria-labelledby": "create" }, [
        h("h2", { id: "create" }, "Create a tenant"),
        h("form", { onSubmit: create }, [
          h("div", { class: "line" }, [
            input(form, "name", "Name", { required: true, maxlength: 128, autocomplete: "off" }),
            input(form, "account", "Account (12 digits; empty: any)", { pattern: "[0-9]{12}", inputmode: "numeric", autocomplete: "off" }),
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Create"),
          ]),
          outcome(act),
        ]),
      ]),
      view.limits ? h(LimitsDialog, { account: view.limits, onClose: () => (view.limits = "") }) : null,
      view.suspending
        ? h(Confirm, {
            name: view.suspending, title: `Suspend ${view.suspending}`, verb: "Suspend the tenant",
            text: "All calls of the tenant are refused until it is resumed. Nothing is deleted.",
            work: () => call("POST", tenantPath(view.suspending, "/suspend"), { query: own }),
            onClose: () => (view.suspending = ""),
            onDone: () => {
              view.suspending = "";
              state.refresh();
            },
          })
        : null,
      view.deleting
        ? h(Confirm, {
            name: view.deleting.account, title: `Delete ${view.deleting.name}`, verb: "Delete the tenant",
            text: "The tenant is deleted with its keys, queues and messages. This cannot be undone.",
            work: () => call("DELETE", tenantPath(view.deleting.account), { query: own }),
            onClose: () => (view.deleting = null),
            onDone: () => {
              view.deleting = null;
              state.refresh();
            },
          })
        : null,
    ];
  },
};
