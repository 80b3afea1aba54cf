// Roles of the account, for sessions of other accounts and of the OIDC issuer.

import { call } from "../api.js";
import { Confirm, choices, input, loaded, outcome, table, useAct, useLoaded } from "../widgets.js";
import { SCOPES, rights, words } from "./keys.js";

const { h, reactive, shallowReactive } = Vue;
const COLUMNS = [["Name", "name"], ["ARN", ""], ["Rights", ""], ["Trusted", ""], ["Longest session", "number"], ["", ""]];
const rolePath = (name) => `roles/${encodeURIComponent(name)}`;

export const Roles = {
  setup() {
    const state = useLoaded(async () => (await call("GET", "roles")).roles);
    const form = reactive({ name: "", scopes: ["send", "receive"], prefixes: "", accounts: "", subjects: "", seconds: "3600" });
    const view = shallowReactive({ deleting: null });
    const act = useAct();

    const save = (event) => {
      event.preventDefault();
      act.run(async () => {
        await call("PUT", rolePath(form.name.trim()), {
          json: {
            scopes: form.scopes, prefixes: words(form.prefixes), trusted_accounts: words(form.accounts),
            trusted_subjects: words(form.subjects), session_seconds_max: Number(form.seconds),
          },
        });
        await state.refresh();
        return "Saved.";
      });
    };
    const edit = (role) =>
      Object.assign(form, {
        name: role.name, scopes: role.scopes, prefixes: role.prefixes.join(" "), accounts: role.trusted_accounts.join(" "),
        subjects: role.trusted_subjects.join(" "), seconds: String(role.session_seconds_max),
      });
    const row = (role) => ({
      key: role.name,
      cells: [
        h("bdi", role.name), h("code", role.arn), rights(role.scopes, role.prefixes),
        [...role.trusted_accounts, ...role.trusted_subjects].join(", ") || "–", `${role.session_seconds_max} s`,
        h("div", { class: "buttons" }, [
          h("button", { type: "button", "aria-label": `Edit ${role.name}`, onClick: () => edit(role) }, "Edit"),
          h("button", { type: "button", class: "danger", "aria-label": `Delete ${role.name}`, onClick: () => (view.deleting = role.name) }, "Delete…"),
        ]),
      ],
    });

    return () => [
      loaded(state, (roles) =>
        roles.length ? table("Roles", COLUMNS, roles.map(row)) : h("p", { class: "empty" }, "No roles yet. With a role, keys of other accounts and people of your OIDC issuer get temporary sessions with its rights.")),
      h("section", { "aria-labelledby": "save" }, [
        h("h2", { id: "save" }, "Create or change a role"),
        h("form", { onSubmit: save }, [
          h("div", { class: "line" }, [
            input(form, "name", "Name", { required: true, autocomplete: "off", maxlength: 64 }),
            input(form, "seconds", "Longest session (seconds)", { type: "number", min: 900, max: 43_200, required: true }),
          ]),
          choices(form, "scopes", "Scopes", SCOPES),
          input(form, "prefixes", "Only for queues whose names begin with (empty: all)", { autocomplete: "off", spellcheck: "false" }),
          input(form, "accounts", "Trusted accounts", { autocomplete: "off", hint: "Whose keys may assume the role: 12 digits each, with spaces between." }),
          input(form, "subjects", "Trusted subjects of the OIDC issuer", { autocomplete: "off", spellcheck: "false" }),
          outcome(act),
          h("button", { type: "submit", class: "primary", disabled: act.busy || !form.scopes.length }, "Save"),
        ]),
      ]),
      view.deleting
        ? h(Confirm, {
            name: view.deleting, title: "Delete the role", verb: "Delete the role", text: "Its sessions end everywhere within a second.",
            work: () => call("DELETE", rolePath(view.deleting)),
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
