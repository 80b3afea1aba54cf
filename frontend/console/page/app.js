// The frame of all pages, and the way from the address to a page.

import { session, signOut } from "./api.js";
import { Queue } from "./queues/queue.js";
import { Queues } from "./queues/list.js";
import { SignIn } from "./sign_in.js";
import { localTime } from "./text.js";

const { createApp, h, nextTick, reactive, watch } = Vue;

const route = reactive({ page: "queues", name: "", tab: "" });

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function readAddress() {
  const [page, name = "", tab = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  Object.assign(route, page === "queues" && name ? { page: "queue", name, tab } : { page: "queues", name: "", tab: "" });
}

addEventListener("hashchange", () => {
  readAddress();
  nextTick(() => document.querySelector("h1")?.focus());
});
readAddress();

const Account = {
  setup() {
    const form = reactive({ account: session.account });
    const submit = (event) => {
      event.preventDefault();
      session.account = form.account.trim() || session.caller.account;
      form.account = session.account;
      location.hash = "#/queues";
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

function header() {
  const { caller } = session;
  return h("header", { class: "bar" }, [
    h("a", { class: "skip", href: "#content", onClick: (event) => {
      event.preventDefault();
      document.querySelector("h1")?.focus();
    } }, "Skip to the content"),
    h("a", { class: "brand", href: "#/queues" }, "Holdfast"),
    h("nav", { "aria-label": "Pages" }, h("a", { href: "#/queues", "aria-current": route.page === "queues" ? "page" : undefined }, "Queues")),
    caller.role === "operator" ? h(Account) : null,
    h("span", { class: "caller", title: caller.expires ? `Until ${localTime(caller.expires)}` : undefined }, [
      h("bdi", caller.account_name || caller.account), " · ", caller.role,
    ]),
    h("button", { type: "button", onClick: () => signOut() }, "Sign out"),
  ]);
}

const App = {
  setup() {
    watch(
      () => [session.caller, route.name],
      () => (document.title = session.caller && route.name ? `${route.name} – Holdfast` : "Holdfast console"),
      { immediate: true },
    );
    watch(() => session.caller, () => nextTick(() => document.querySelector("h1")?.focus()));
    return () => {
      if (!session.caller) return h(SignIn);
      const page =
        route.page === "queue"
          ? h(Queue, { key: `${session.account}/${route.name}`, name: route.name, tab: route.tab })
          : h(Queues, { key: session.account });
      return [header(), h("main", { id: "content" }, page)];
    };
  },
};

createApp(App).mount("#app");
