// One subscription: its state, its attributes, a test of its filter policy.

import { call, session, topicPath } from "../api.js";
import { queueLink, topicLink } from "../links.js";
import { count, duration } from "../text.js";
import { Confirm, input, loaded, outcome, useAct, useLoaded } from "../widgets.js";
import { FilterTest, filterFields } from "./filter_test.js";

const { h, reactive, shallowReactive } = Vue;
const ATTRIBUTES = ["RawMessageDelivery", "FilterPolicy", "FilterPolicyScope", "RedrivePolicy", "DeliveryPolicy"];
const DEFAULTS = { RawMessageDelivery: "false", FilterPolicyScope: "MessageAttributes" };

const deadLetters = (policy) => (policy ? JSON.parse(policy).deadLetterTargetArn : "");

/** Members of a form for the attributes of a subscription. */
export const subscriptionForm = (attributes) =>
  Object.fromEntries(ATTRIBUTES.map((name) => [name, name === "RedrivePolicy" ? deadLetters(attributes[name]) : attributes[name] ?? DEFAULTS[name] ?? ""]));

/** Attributes of the form that are not as they are `stored`. */
export function attributesOf(form, stored) {
  const before = subscriptionForm(stored);
  const changed = ATTRIBUTES.filter((name) => form[name].trim() !== before[name]).map((name) => [name, form[name].trim()]);
  const attributes = Object.fromEntries(changed);
  const dead = attributes.RedrivePolicy;
  if (dead) {
    const arn = dead.startsWith("arn:") ? dead : `arn:aws:sqs:${session.caller.region}:${session.account}:${dead}`;
    attributes.RedrivePolicy = JSON.stringify({ deadLetterTargetArn: arn });
  }
  return attributes;
}

/** Fields of the attributes; `pushed`: the endpoint is a URL. */
export const subscriptionFields = (form, pushed) => [
  input(form, "RawMessageDelivery", "Raw delivery", { tag: "select", options: ["false", "true"], code: "RawMessageDelivery", hint: "true: messages as they were published, without SNS’s JSON around them." }),
  filterFields(form),
  input(form, "RedrivePolicy", "Dead-letter queue (optional)", { code: "RedrivePolicy", hint: "The name or ARN of a queue for messages that cannot be delivered.", autocomplete: "off", spellcheck: "false" }),
  pushed ? input(form, "DeliveryPolicy", "Delivery policy (JSON, optional)", { tag: "textarea", rows: 4, code: "DeliveryPolicy", spellcheck: "false" }) : null,
];

const nameOfQueue = (arn) => arn.split(":").at(-1);

/** What to do about a subscription that is not confirmed. */
const Confirmation = {
  props: ["name", "shown", "refresh"],
  setup(props) {
    const form = reactive({ token: "" });
    const act = useAct();
    const confirm = (event) => {
      event.preventDefault();
      act.run(async () => {
        await call("POST", topicPath(props.name, "/subscriptions/confirm"), { json: { token: form.token.trim() } });
        await props.refresh();
      });
    };
    return () =>
      h("section", { class: "notice", "aria-labelledby": "confirmation" }, [
        h("h2", { id: "confirmation" }, "It waits for its confirmation"),
        h("p", "The endpoint has got a message with a token, and a link that confirms the subscription. Nothing else is delivered before that."),
        h("form", { class: "line", onSubmit: confirm }, [
          input(form, "token", "Token", { autocomplete: "off", spellcheck: "false", required: true }),
          h("button", { type: "submit", disabled: act.busy }, "Confirm"),
        ]),
        outcome(act),
        h("button", { type: "button", onClick: props.refresh }, "Look again"),
      ]);
  },
};

export const Subscription = {
  props: ["name", "id"],
  setup(props) {
    const path = topicPath(props.name, `/subscriptions/${encodeURIComponent(props.id)}`);
    const form = reactive(subscriptionForm({}));
    const view = shallowReactive({ deleting: false });
    const act = useAct();
    const state = useLoaded(async () => {
      const shown = await call("GET", path);
      Object.assign(form, subscriptionForm(shown.attributes));
      return shown;
    });
    const save = (event) => {
      event.preventDefault();
      act.run(async () => {
        const attributes = attributesOf(form, state.data.attributes);
        if (!Object.keys(attributes).length) return "Nothing was changed.";
        await call("PATCH", path, { json: { attributes } });
        await state.refresh();
        return "Saved.";
      });
    };
    const facts = (shown) => [
      ["Endpoint", shown.protocol === "sqs" && shown.owner === session.account ? h("a", { href: queueLink(nameOfQueue(shown.endpoint)) }, h("bdi", nameOfQueue(shown.endpoint))) : h("bdi", shown.endpoint)],
      ["Protocol", shown.protocol],
      ["State", shown.confirmed ? "confirmed" : "to be confirmed"],
      shown.backlog && ["Waiting for the endpoint", shown.backlog.pending ? `${count(shown.backlog.pending)}, the oldest for ${duration(shown.backlog.oldest_seconds)}` : "nothing"],
      shown.confirmed_by && ["Confirmed by", h("code", shown.confirmed_by)],
      ["Owner", shown.owner],
      ["ARN", h("code", shown.arn)],
    ];
    return () => [
      h("p", h("a", { href: topicLink(props.name, "subscriptions") }, "All subscriptions")),
      loaded(state, (shown) => [
        h("dl", { class: "facts" }, facts(shown).filter(Boolean).map(([label, value]) => h("div", [h("dt", label), h("dd", value)]))),
        shown.confirmed ? null : h(Confirmation, { name: props.name, shown, refresh: state.refresh }),
        h("form", { onSubmit: save }, [
          h("h2", "Attributes"),
          subscriptionFields(form, shown.protocol !== "sqs"),
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Save"),
            h("button", { type: "button", class: "danger", onClick: () => (view.deleting = true) }, "Delete…"),
          ]),
        ]),
        h(FilterTest, { policy: form.FilterPolicy, scope: form.FilterPolicyScope }),
      ]),
      view.deleting
        ? h(Confirm, {
            title: "Delete the subscription", verb: "Delete the subscription", text: "The endpoint gets no further messages; those that are pending are still delivered.",
            work: () => call("DELETE", path),
            onClose: () => (view.deleting = false),
            onDone: () => (location.hash = topicLink(props.name, "subscriptions")),
          })
        : null,
    ];
  },
};
