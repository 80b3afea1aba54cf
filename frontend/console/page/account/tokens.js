// Tokens: rights of a key for an hour at most.

import { buyToken } from "../api.js";
import { localTime } from "../text.js";
import { choices, input, outcome, secret, useAct } from "../widgets.js";
import { SCOPES, words } from "./keys.js";

const { h, reactive, shallowReactive } = Vue;

export const Tokens = {
  setup() {
    const form = reactive({ key: "", minutes: "60", scopes: ["send"], prefixes: "" });
    const view = shallowReactive({ token: "" });
    const act = useAct();

    const submit = (event) => {
      event.preventDefault();
      const key = form.key.trim();
      form.key = "";
      act.run(async () => {
        const asked = { seconds: Number(form.minutes) * 60, scopes: form.scopes, prefixes: words(form.prefixes) };
        const { token, expires } = await buyToken(key, asked);
        view.token = token;
        return `The token is valid until ${localTime(expires)}, and no longer than its key.`;
      });
    };
    return () => [
      h("p", "A token (JWT) carries rights of a key for an hour at most, for example to a browser or a job. It ends early when its key is revoked."),
      h("form", { onSubmit: submit }, [
        input(form, "key", "API key that the token is made with", { type: "password", autocomplete: "off", spellcheck: "false", required: true, hint: "It is sent once, and not kept." }),
        input(form, "minutes", "Minutes", { type: "number", min: 1, max: 60, required: true }),
        choices(form, "scopes", "Scopes", SCOPES),
        input(form, "prefixes", "Only for queues whose names begin with (empty: those of the key)", { autocomplete: "off", spellcheck: "false" }),
        outcome(act),
        view.token ? secret("The token, for the header Authorization: Bearer. It is not shown again.", view.token) : null,
        h("button", { type: "submit", class: "primary", disabled: act.busy || !form.scopes.length }, "Make a token"),
      ]),
    ];
  },
};
