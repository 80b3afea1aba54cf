// The pages of an account.

import { administers, session } from "../api.js";
import { tabLinks } from "../widgets.js";
import { Audit } from "./audit.js";
import { Keys } from "./keys.js";
import { Limits } from "./limits.js";
import { Roles } from "./roles.js";
import { Tokens } from "./tokens.js";
import { Usage } from "./usage.js";

const { h } = Vue;

const TABS = [
  ["", "Limits", Limits],
  ["usage", "Usage and cost", Usage],
  ["keys", "Keys", Keys],
  ["roles", "Roles", Roles],
  ["tokens", "Tokens", Tokens],
  ["audit", "Audit log", Audit],
];

export const Account = {
  props: ["tab"],
  setup: (props) => () => {
    const [tab, , page] = TABS.find(([name]) => name === props.tab) || TABS[0];
    return [
      h("h1", { tabindex: -1 }, `Account ${session.account}`),
      administers()
        ? [
            tabLinks("Pages of the account", TABS, tab, (name) => `#/account${name && `/${name}`}`),
            h(page, { key: `${session.account}/${tab}` }),
          ]
        : h("p", { class: "empty" }, "Your key does not administer the account: that takes the role “admin” and the scope “manage”."),
    ];
  },
};
