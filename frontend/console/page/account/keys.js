// Access keys and API keys of the account.

import { call, session } from "../api.js";
import { time } from "../body.js";
import { localTime } from "../text.js";
import { Confirm, choices, input, loaded, outcome, secret, table, useAct, useLoaded } from "../widgets.js";

const { h, reactive, shallowReactive } = Vue;

export const SCOPES = ["send", "receive", "manage", "monitor"];
const DAY_SECONDS = 86_400;
const COLUMNS = [["Id", "name"], ["Name", "name"], ["Kind", ""], ["Role", ""], ["Rights", ""], ["State", ""], ["Last used", ""], ["", ""]];

export const rights = (scopes, prefixes) => [scopes.join(", "), prefixes.length ? h("small", `queues ${prefixes.map((one) => `${one}*`).join(", ")}`) : null];
export const words = (text) => text.split(/[\s,]+/).filter(Boolean);

export const Keys = {
  setup() {
    const state = useLoaded(async () => (await call("GET", "keys")).keys);
    const form = reactive({ name: "", kind: "api", role: "user", scopes: ["send", "receive"], prefixes: "", days: "" });
    const view = shallowReactive({ made: null, revoking: null });
    const act = useAct();

    const create = (event) => {
      event.preventDefault();
      act.run(async () => {
        const { name, kind, role, scopes } = form;
        const json = { name, kind, role, scopes, prefixes: words(form.prefixes) };
        if (form.days) json.expires_in_seconds = Math.round(Number(form.days) * DAY_SECONDS);
        view.made = await call("POST", "keys", { json });
        await state.refresh();
        return `The key ${view.made.id} was made.`;
      });
    };
    const rotate = (key) =>
      act.run(async () => {
        view.made = await call("POST", `keys/${encodeURIComponent(key.id)}/rotate`, { json: {} });
        await state.refresh();
        return `The key ${view.made.id} was made. ${key.id} stays valid for a day.`;
      });
    const row = (key) => ({
      key: key.id,
      cells: [
        h("code", key.id), h("bdi", key.name), key.kind, key.role, rights(key.scopes, key.prefixes),
        [key.state, key.expires ? h("small", `until ${localTime(key.expires)}`) : null],
        key.last_used ? time(key.last_used) : "–",
        key.state === "active"
          ? h("div", { class: "buttons" }, [
              h("button", { type: "button", disabled: act.busy, "aria-label": `Rotate ${key.id}`, onClick: () => rotate(key) }, "Rotate"),
              h("button", { type: "button", class: "danger", "aria-label": `Revoke ${key.id}`, onClick: () => (view.revoking = key) }, "Revoke…"),
            ])
          : "",
      ],
    });

    return () => [
      loaded(state, (keys) => table("Keys", COLUMNS, keys.map(row))),
      h("section", { "aria-labelledby": "create" }, [
        h("h2", { id: "create" }, "Create a key"),
        h("form", { onSubmit: create }, [
          h("div", { class: "line" }, [
            input(form, "name", "Name of its user", { required: true, autocomplete: "off", maxlength: 64 }),
            input(form, "kind", "Kind", { tag: "select", options: ["api", "access"] }),
            input(form, "role", "Role", { tag: "select", options: session.caller.role === "operator" ? ["user", "admin", "operator"] : ["user", "admin"] }),
            input(form, "days", "Valid for days (empty: for ever)", { type: "number", min: 1, max: 36_500 }),
          ]),
          choices(form, "scopes", "Scopes", SCOPES),
          input(form, "prefixes", "Only for queues whose names begin with (empty: all)", { autocomplete: "off", spellcheck: "false", hint: "Several, with spaces between." }),
          outcome(act),
          view.made ? secret(`The secret of ${view.made.id}. Keep it now: it is never shown again.`, view.made.secret) : null,
          h("button", { type: "submit", class: "primary", disabled: act.busy || !form.scopes.length }, "Create"),
        ]),
      ]),
      view.revoking
        ? h(Confirm, {
            name: view.revoking.name, title: "Revoke the key", verb: "Revoke the key",
            text: `The key ${view.revoking.id} is refused everywhere within a second. This cannot be undone.`,
            work: () => call("DELETE", `keys/${encodeURIComponent(view.revoking.id)}`),
            onClose: () => (view.revoking = null),
            onDone: () => {
              view.revoking = null;
              state.refresh();
            },
          })
        : null,
    ];
  },
};
