// Signing in.

import { session, signInWithAccessKey, signInWithBearer } from "./api.js";
import { issuerName, leaveForIssuer, returned, signInWithIssuer } from "./issuer.js";
import { canSign } from "./signing.js";
import { input, outcome, useAct } from "./widgets.js";

const { h, onMounted, reactive } = Vue;
let ended = !returned;

/** The button that leaves for the issuer, and what follows when the browser is back from there. */
const IssuerSignIn = {
  setup() {
    const act = useAct();
    onMounted(() => {
      if (ended) return;
      ended = true;
      act.run(signInWithIssuer);
    });
    return () =>
      h("div", { class: "issuer" }, [
        h("button", { type: "button", class: "primary", disabled: act.busy, onClick: () => act.run(leaveForIssuer) },
          act.busy ? "Signing in…" : `Sign in with ${issuerName}`),
        outcome(act),
        session.issuerSignOut
          ? h("p", { class: "hint" }, [
              `Your session at ${issuerName} goes on. `,
              h("a", { href: session.issuerSignOut, rel: "noreferrer" }, "End it there"),
              ".",
            ])
          : null,
      ]);
  },
};

export const SignIn = {
  setup() {
    const form = reactive({ kind: "api", bearer: "", id: "", secret: "" });
    const act = useAct();

    const submit = (event) => {
      event.preventDefault();
      const { kind, bearer, id, secret } = form;
      form.bearer = form.secret = "";
      act.run(() => (kind === "api" ? signInWithBearer(bearer.trim()) : signInWithAccessKey(id.trim(), secret.trim())));
    };
    const choice = (kind, label) =>
      h("label", { class: "choice" }, [
        h("input", { type: "radio", name: "kind", value: kind, checked: form.kind === kind, onChange: () => (form.kind = kind) }),
        label,
      ]);
    const secretInput = { type: "password", autocomplete: "off", spellcheck: "false", required: true };

    return () =>
      h("main", { class: "sign-in", id: "content" }, [
        h("h1", { tabindex: -1 }, "Sign in to Holdfast"),
        session.notice ? h("p", { class: "notice", role: "status" }, session.notice) : null,
        issuerName ? h(IssuerSignIn) : null,
        h("form", { onSubmit: submit }, [
          h("fieldset", [
            h("legend", "Credential"),
            choice("api", "API key or token"),
            choice("access", "Access key"),
          ]),
          form.kind === "api"
            ? input(form, "bearer", "API key or token", { hint: "It begins with hf_, or is a token of your organisation’s sign-in.", ...secretInput })
            : canSign
              ? [
                  input(form, "id", "Access key ID", { autocomplete: "off", spellcheck: "false", required: true }),
                  input(form, "secret", "Secret access key", { hint: "It signs one request in this browser, and is not sent.", ...secretInput }),
                ]
              : h("p", { class: "notice" }, "Browsers can use access keys only over HTTPS, or on localhost. Use an API key here."),
          outcome(act),
          h("button", { type: "submit", class: "primary", disabled: act.busy || (form.kind === "access" && !canSign) }, act.busy ? "Signing in…" : "Sign in"),
        ]),
        h("p", { class: "hint" }, [
          "The session lasts for an hour at most, or as long as the token of an issuer, and ends when this tab is closed or reloaded. A new service prints an access key when it first starts; an administrator makes API keys with ",
          h("code", "holdfast key create NAME --kind api"),
          ".",
        ]),
      ]);
  },
};
