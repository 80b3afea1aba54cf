// The pages of one queue.

import { call, may, queuePath } from "../api.js";
import { Alarms } from "./alarms.js";
import { Configuration } from "./configuration.js";
import { DeadLetters } from "./dead_letters.js";
import { queueLink } from "../links.js";
import { Messages } from "./messages.js";
import { Overview } from "./overview.js";
import { Confirm, loaded, tabLinks, useLoaded } from "../widgets.js";

const { h, shallowReactive } = Vue;

/** Pages that need what `/v1/queues/NAME` shows, which takes the scope "manage". */
const Managed = {
  props: ["name", "page"],
  setup(props) {
    const state = useLoaded(() => call("GET", queuePath(props.name)));
    return () => loaded(state, (shown) => h(props.page, { name: props.name, shown, refresh: state.refresh }));
  },
};

const TABS = [["", "Overview"], ["messages", "Messages"], ["configuration", "Configuration"], ["dead-letters", "Dead letters"], ["alarms", "Alarms"]];

export const Queue = {
  props: ["name", "tab"],
  setup(props) {
    const state = shallowReactive({ dialog: "", done: "" });
    const close = () => (state.dialog = "");

    function dialog() {
      const { name } = props;
      if (state.dialog === "purge") {
        return h(Confirm, {
          name, title: "Purge the queue", verb: "Delete all messages", text: "All messages of the queue are deleted, also those in flight. This cannot be undone.",
          work: () => call("POST", queuePath(name, "/purge")),
          onClose: close,
          onDone: () => Object.assign(state, { dialog: "", done: "The queue was purged." }),
        });
      }
      if (state.dialog === "delete") {
        return h(Confirm, {
          name, title: "Delete the queue", verb: "Delete the queue", text: "The queue is deleted with all its messages. This cannot be undone.",
          work: () => call("DELETE", queuePath(name)),
          onClose: close,
          onDone: () => {
            close();
            location.hash = "#/queues";
          },
        });
      }
      return null;
    }

    function content() {
      const { name, tab } = props;
      if (tab === "messages") return h(Messages, { name });
      if (tab === "configuration" && may("manage")) return h(Managed, { name, page: Configuration, key: tab });
      if (tab === "dead-letters" && may("manage")) return h(Managed, { name, page: DeadLetters, key: tab });
      if (tab === "alarms" && may("manage")) return h(Alarms, { name });
      return h(Overview, { name });
    }

    const tabs = TABS.filter(([tab]) => may("manage") || tab === "" || tab === "messages");
    return () => [
      h("div", { class: "line title" }, [
        h("h1", { tabindex: -1 }, h("bdi", props.name)),
        may("manage")
          ? h("div", { class: "buttons" }, [
              h("button", { type: "button", class: "danger", onClick: () => (state.dialog = "purge") }, "Purge…"),
              h("button", { type: "button", class: "danger", onClick: () => (state.dialog = "delete") }, "Delete…"),
            ])
          : null,
      ]),
      h("p", { class: "done", role: "status" }, state.done),
      tabLinks("Pages of the queue", tabs, props.tab, (tab) => queueLink(props.name, tab)),
      content(),
      dialog(),
    ];
  },
};
