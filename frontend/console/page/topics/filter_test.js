// Whether a filter policy lets a message through, decided by the service without publishing it.

import { call } from "../api.js";
import { PUBLISHED_TYPES, addAttribute, attributeFields, attributesOf } from "../message_attributes.js";
import { input, outcome, useAct } from "../widgets.js";

const { h, reactive } = Vue;
const SCOPES = ["MessageAttributes", "MessageBody"];

/** A message to try the policy with.  `policy` is empty where there is none. */
export const FilterTest = {
  props: ["policy", "scope"],
  setup(props) {
    const form = reactive({ body: "", rows: [] });
    const act = useAct();
    const test = (event) => {
      event.preventDefault();
      act.run(async () => {
        const json = { policy: props.policy.trim() || "{}", scope: props.scope, body: form.body, attributes: attributesOf(form.rows) };
        const { matches } = await call("POST", "filter-policies/test", { json, query: { account: undefined } });
        return matches ? "It matches: a subscription with this policy gets the message." : "It does not match: a subscription with this policy does not get the message.";
      });
    };
    return () =>
      h("section", { "aria-labelledby": "filter-test" }, [
        h("h2", { id: "filter-test" }, "Test the filter policy"),
        h("p", "Would a message get through? The service decides by the policy above, also before it is saved, and publishes nothing."),
        h("form", { onSubmit: test }, [
          input(form, "body", "Message", { tag: "textarea", rows: 4, spellcheck: "false" }),
          attributeFields(form.rows, PUBLISHED_TYPES),
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Test"),
            addAttribute(form.rows),
          ]),
        ]),
      ]);
  },
};

/** Fields of a filter policy: members of the form `model`. */
export const filterFields = (model) => [
  input(model, "FilterPolicy", "Filter policy (JSON)", {
    tag: "textarea", rows: 5, code: "FilterPolicy", spellcheck: "false", hint: "Only messages that match are delivered, such as {\"kind\": [\"order\"]}. Empty: all messages.",
  }),
  input(model, "FilterPolicyScope", "The policy is for", { tag: "select", options: SCOPES, code: "FilterPolicyScope" }),
];

/** A page to write filter policies. */
export const FilterTests = {
  setup() {
    const form = reactive({ FilterPolicy: "", FilterPolicyScope: SCOPES[0] });
    return () => [
      h("h1", { tabindex: -1 }, "Filter policies"),
      filterFields(form),
      h(FilterTest, { policy: form.FilterPolicy, scope: form.FilterPolicyScope }),
    ];
  },
};
