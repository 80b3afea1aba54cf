// Whether a policy permits a call, decided by the service without making the call.

import { call } from "./api.js";
import { input, outcome, useAct } from "./widgets.js";

const { h, reactive } = Vue;

/** `path`: where the queue or topic is below /v1/; `actions`: those to choose from. */
export const PolicyCheck = {
  props: ["path", "policy", "actions"],
  setup(props) {
    const form = reactive({ action: props.actions[0], principal: "", source: "" });
    const act = useAct();
    const check = (event) => {
      event.preventDefault();
      act.run(async () => {
        const json = { action: form.action, principal: form.principal.trim() || null };
        if (form.source.trim()) json.conditions = { "aws:SourceArn": form.source.trim() };
        if (props.policy.trim()) json.policy = props.policy;
        const { allowed, statement, reason } = await call("POST", `${props.path}/policy-check`, { json });
        const by = statement ? ` by statement ${statement.number}${statement.sid ? ` (${statement.sid})` : ""}` : "";
        return `${allowed ? "Allowed" : "Not allowed"}${by}. ${reason}`;
      });
    };
    return () =>
      h("section", { "aria-labelledby": "policy-check" }, [
        h("h2", { id: "policy-check" }, "Check the policy"),
        h("p", "May someone make a call? The service decides by the policy above, also before it is saved, and makes no call."),
        h("form", { onSubmit: check }, [
          h("div", { class: "line" }, [
            input(form, "action", "Action", { tag: "select", options: props.actions }),
            input(form, "principal", "Caller (empty: unsigned)", { autocomplete: "off", spellcheck: "false", placeholder: "account or ARN" }),
            input(form, "source", "aws:SourceArn (optional)", { autocomplete: "off", spellcheck: "false" }),
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Check"),
          ]),
          outcome(act),
        ]),
      ]);
  },
};
