// Texts of anyone, as they can be read.

import { asHex, asJson, asXml, count, localTime, utcTime, visible } from "./text.js";

const { computed, h, reactive } = Vue;
const SHOWN_MAX = 20_000;
const FORMATTED_MAX = 1_048_576;

/** A text of anyone, shown as text, JSON, XML, or the bytes of base64. */
export const Body = {
  props: ["text", "label"],
  setup(props) {
    const view = reactive({ form: "", whole: false });
    const forms = computed(() => {
      const all = { Text: visible(props.text) };
      if (props.text.length <= FORMATTED_MAX) {
        const json = asJson(props.text);
        const xml = asXml(props.text);
        if (json !== null) all.JSON = visible(json);
        if (xml !== null) all.XML = visible(xml);
      }
      const hex = asHex(props.text);
      if (hex !== null) all.Bytes = hex;
      return all;
    });
    return () => {
      const form = view.form || ["JSON", "XML"].find((one) => one in forms.value) || "Text";
      const text = forms.value[form];
      const names = Object.keys(forms.value);
      return h("div", { class: "body" }, [
        names.length > 1
          ? h("div", { class: "buttons", role: "group", "aria-label": `${props.label}: shown as` },
              names.map((one) => h("button", { type: "button", "aria-pressed": String(one === form), onClick: () => (view.form = one) }, one)))
          : null,
        text === ""
          ? h("p", { class: "hint" }, "Empty")
          : h("pre", { tabindex: 0, dir: "ltr", role: "group", "aria-label": props.label }, view.whole ? text : text.slice(0, SHOWN_MAX)),
        text.length > SHOWN_MAX && !view.whole
          ? h("button", { type: "button", onClick: () => (view.whole = true) }, `Show all ${count(text.length)} characters`)
          : null,
      ]);
    };
  },
};

/** A time in the viewer’s zone, with UTC below. */
export const time = (seconds) => [localTime(seconds), h("small", utcTime(seconds))];
