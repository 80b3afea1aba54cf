// The pages of the service's operators.

import { administers, session } from "../api.js";
import { tabLinks } from "../widgets.js";
import { Clusters } from "./clusters.js";
import { Partitions } from "./partitions.js";
import { Tenants } from "./tenants.js";

const { h } = Vue;

const TABS = [["", "Clusters", Clusters], ["tenants", "Tenants", Tenants], ["partitions", "Partitions of queues", Partitions]];

export const Operators = {
  props: ["tab"],
  setup: (props) => () => {
    const [tab, , page] = TABS.find(([name]) => name === props.tab) || TABS[0];
    return [
      h("h1", { tabindex: -1 }, "Service"),
      administers() && session.caller.role === "operator"
        ? [tabLinks("Pages of operators", TABS, tab, (name) => `#/operators${name && `/${name}`}`), h(page, { key: tab })]
        : h("p", { class: "empty" }, "These pages are for operators of the service."),
    ];
  },
};
