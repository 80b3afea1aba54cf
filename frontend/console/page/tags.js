// Tags of a queue or a topic, edited in rows.

import { input, outcome, useAct } from "./widgets.js";

const { h, reactive, watch } = Vue;

/** `save` stores what has changed: new values by name, null for a tag that is removed. */
export const Tags = {
  props: ["tags", "none", "save"],
  setup(props) {
    const form = reactive({ rows: [] });
    const act = useAct();
    watch(() => props.tags, (tags) => (form.rows = Object.entries(tags).map(([key, value]) => ({ key, value }))), { immediate: true });

    function submit(event) {
      event.preventDefault();
      act.run(async () => {
        const wanted = Object.fromEntries(form.rows.filter(({ key }) => key).map(({ key, value }) => [key, value]));
        const stored = new Map(Object.entries(props.tags));
        const changed = Object.fromEntries([ // a key may be "__proto__"
          ...Object.entries(wanted).filter(([key, value]) => stored.get(key) !== value),
          ...[...stored.keys()].filter((key) => !Object.hasOwn(wanted, key)).map((key) => [key, null]),
        ]);
        if (!Object.keys(changed).length) return "Nothing was changed.";
        await props.save(changed);
        return "Saved.";
      });
    }
    return () =>
      h("section", { "aria-labelledby": "tags" }, [
        h("h2", { id: "tags" }, "Tags"),
        h("form", { onSubmit: submit }, [
          form.rows.length ? null : h("p", props.none),
          form.rows.map((row, at) =>
            h("div", { class: "line", key: at }, [
              input(row, "key", `Name of tag ${at + 1}`, { autocomplete: "off", maxlength: 128 }),
              input(row, "value", `Value of tag ${at + 1}`, { autocomplete: "off", maxlength: 256 }),
              h("button", { type: "button", "aria-label": `Remove tag ${at + 1}`, onClick: () => form.rows.splice(at, 1) }, "Remove"),
            ]),
          ),
          outcome(act),
          h("div", { class: "buttons" }, [
            h("button", { type: "button", onClick: () => form.rows.push({ key: "", value: "" }) }, "Add a tag"),
            h("button", { type: "submit", class: "primary", disabled: act.busy }, "Save tags"),
          ]),
        ]),
      ]);
  },
};
