// Attributes of a message that is written in a form: rows of a name, a type and a value.

import { input } from "./widgets.js";

const { h } = Vue;
const ROWS_MAX = 10;
const TYPES = ["String", "Number", "Binary"];
/** Types of attributes of publications, which filter policies compare. */
export const PUBLISHED_TYPES = [...TYPES, "String.Array"];

/** Rows of a message's attributes, as the REST interface shows them. */
export const attributeRows = (attributes) => Object.entries(attributes).map(([name, { type, value }]) => ({ name, type, value }));

/** Attributes for the REST interface; undefined: there are none. */
export const attributesOf = (rows) =>
  rows.length ? Object.fromEntries(rows.map(({ name, type, value }) => [name, { type, value }])) : undefined;

export const attributeFields = (rows, types = TYPES) =>
  rows.map((row, at) =>
    h("div", { class: "line", key: at }, [
      input(row, "name", `Attribute ${at + 1}`, { required: true, autocomplete: "off" }),
      input(row, "type", `Type of attribute ${at + 1}`, { tag: "select", options: [...new Set([...types, row.type])] }),
      input(row, "value", row.type.startsWith("Binary") ? "Value in base64" : "Value", { required: true, autocomplete: "off" }),
      h("button", { type: "button", "aria-label": `Remove attribute ${at + 1}`, onClick: () => rows.splice(at, 1) }, "Remove"),
    ]));

export const addAttribute = (rows) =>
  h("button", { type: "button", disabled: rows.length >= ROWS_MAX, onClick: () => rows.push({ name: "", type: "String", value: "" }) }, "Add an attribute");
