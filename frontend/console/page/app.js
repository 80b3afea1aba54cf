// The frame of all pages, and the way from the address to a page.

import "./returned.js"; // first: it takes the issuer's answer out of the address
import { administers, session, showAccount, signOut, usesStreams, usesTopics } from "./api.js";
import { Queue } from "./queues/queue.js";
import { Queues } from "./queues/list.js";
import { SignIn } from "./sign_in.js";
import { localTime } from "./text.js";

const { createApp, defineAsyncComponent, h, nextTick, reactive, watch } = Vue;

const focusHeading = () => document.querySelector("h1")?.focus();

/** A page whose scripts are loaded when it is first shown. */
const later = (load) =>
  defineAsyncComponent({
    loader: () => load().finally(() => setTimeout(focusHeading)),
    delay: 0,
    loadingComponent: { render: () => h("h1", { tabindex: -1 }, "Loading…") },
  });
const Operators = later(() => import("./operators/operators.js").then((module) => module.Operators));
const Streams = later(() => import("./streams/list.js").then((module) => module.Streams));
const Stream = later(() => import("./streams/stream.js").then((module) => module.Stream));
const Group = later(() => import("./streams/group.js").then((module) => module.Group));
const Topics = later(() => import("./topics/list.js").then((module) => module.Topics));
const Topic = later(() => import("./topics/topic.js").then((module) => module.Topic));
const FilterTests = later(() => import("./topics/filter_test.js").then((module) => module.FilterTests));
const Account = later(() => import("./account/account.js").then((module) => module.Account));

const route = reactive({ page: "queues", name: "", tab: "", item: "" });

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function readAddress() {
  const [page, name = "", tab = "", item = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  if (page === "account" || page === "operators") Object.assign(route, { page, name: "", tab: name });
  else if (page === "streams") Object.assign(route, { page: name ? "stream" : page, name, tab });
  else if (page === "topics") Object.assign(route, { page: name ? "topic" : page, name, tab, item });
  else if (page === "filters") Object.assign(route, { page, name: "", tab: "" });
  else if (page === "groups" && name) Object.assign(route, { page: "group", name, tab });
  else if (page === "queues" && name) Object.assign(route, { page: "queue", name, tab });
  else Object.assign(route, { page: "queues", name: "", tab: "" });
}

addEventListener("hashchange", () => {
  readAddress();
  nextTick(focusHeading);
});
readAddress();

const AccountChoice = {
  setup() {
    const form = reactive({ account: session.account });
    const submit = (event) => {
      event.preventDefault();
      showAccount(form.account.trim() || session.caller.account);
      form.account = session.account;
      if (PARENT[route.page] !== route.page) location.hash = `#/${PARENT[route.page]}`;
    };
    return () =>
      h("form", { class: "account", onSubmit: submit }, [
        h("label", { for: "account" }, "Account"),
        h("input", {
          id: "account", inputmode: "numeric", autocomplete: "off", pattern: "[0-9]{12}", title: "12 digits", value: form.account,
          onInput: (event) => (form.account = event.target.value),
        }),
        h("button", { type: "submit" }, "Show"),
      ]);
  },
};

const NAVIGATION = [
  ["queues", "Queues", () => true],
  ["streams", "Streams", usesStreams],
  ["topics", "Topics", usesTopics],
  ["account", "Account", administers],
  ["operators", "Operators", () => administers() && session.caller.role === "operator"],
];
/** Pages, by the entry of the navigation that they belong to. */
const PARENT = {
  queues: "queues", queue: "queues", streams: "streams", stream: "streams", group: "streams",
  topics: "topics", topic: "topics", filters: "topics", account: "account", operators: "operators",
};

function header() {
  const { caller } = session;
  return h("header", { class: "bar" }, [
    h("a", { class: "skip", href: "#content", onClick: (event) => {
      event.preventDefault();
      focusHeading();
    } }, "Skip to the content"),
    h("a", { class: "brand", href: "#/queues" }, "Holdfast"),
    h("nav", { class: "pages", "aria-label": "Pages" },
      NAVIGATION.filter(([, , shown]) => shown()).map(([page, label]) =>
        h("a", { href: `#/${page}`, "aria-current": PARENT[route.page] === page ? "page" : undefined }, label))),
    caller.role === "operator" ? h(AccountChoice) : null,
    h("span", { class: "caller", title: caller.expires ? `Until ${localTime(caller.expires)}` : undefined }, [
      h("bdi", caller.account_name || caller.account), " · ", caller.role,
    ]),
    h("button", { type: "button", onClick: () => signOut() }, "Sign out"),
  ]);
}

function page() {
  const { page: name, tab } = route;
  const key = `${session.account}/${route.name}`;
  if (name === "operators") return h(Operators, { tab });
  if (name === "streams") return h(Streams, { key: session.account });
  if (name === "stream") return h(Stream, { key, name: route.name, tab });
  if (name === "group") return h(Group, { key, name: route.name });
  if (name === "topics") return h(Topics, { key: session.account });
  if (name === "topic") return h(Topic, { key, name: route.name, tab, item: route.item });
  if (name === "filters") return h(FilterTests);
  if (name === "account") return h(Account, { key: session.account, tab });
  if (name === "queue") return h(Queue, { key, name: route.name, tab });
  return h(Queues, { key: session.account });
}

const App = {
  setup() {
    watch(
      () => [session.caller, route.name],
      () => (document.title = session.caller && route.name ? `${route.name} – Holdfast` : "Holdfast console"),
      { immediate: true },
    );
    watch(() => session.caller, () => nextTick(focusHeading));
    return () => {
      if (!session.caller) return h(SignIn);
      return [header(), h("main", { id: "content" }, page())];
    };
  },
};

createApp(App).mount("#app");
