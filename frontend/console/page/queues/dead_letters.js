// Dead letters: the queue's own dead-letter queue, and moves out of this one.

import { call, queuePath } from "../api.js";
import { time } from "../body.js";
import { queueLink } from "../links.js";
import { count } from "../text.js";
import { input, outcome, table, useAct } from "../widgets.js";

const { h, onMounted, onUnmounted, reactive } = Vue;
const PROGRESS_MS = 1000;
const UNFINISHED = ["RUNNING", "CANCELLING"];

const nameIn = (arn) => arn.split(":").at(-1);

export const DeadLetters = {
  props: ["name", "shown", "refresh"],
  setup(props) {
    const form = reactive({ destination: "", rate: "" });
    const act = useAct();
    let timer = 0, reading = false;
    onMounted(() => {
      timer = setInterval(() => {
        if (reading || document.hidden || !props.shown.move_tasks.some(({ status }) => UNFINISHED.includes(status))) return;
        reading = true;
        props.refresh().finally(() => (reading = false));
      }, PROGRESS_MS);
    });
    onUnmounted(() => clearInterval(timer));

    function submit(event) {
      event.preventDefault();
      act.run(async () => {
        const asked = {};
        if (form.destination.trim()) asked.destination = form.destination.trim();
        if (form.rate) asked.rate_per_second = Number(form.rate);
        await call("POST", queuePath(props.name, "/move"), { json: asked });
        await props.refresh();
        return "The move has started.";
      });
    }
    const cancel = (handle) =>
      act.run(async () => {
        const { moved } = await call("POST", queuePath(props.name, "/move/cancel"), { json: { task_handle: handle } });
        await props.refresh();
        return `The move was cancelled after ${count(moved)} messages.`;
      });

    function own() {
      const text = props.shown.attributes.RedrivePolicy;
      if (!text) return h("p", "This queue has no dead-letter queue. Set one on the page “Configuration”: messages that are received too often are then moved to it.");
      const policy = JSON.parse(text);
      const name = nameIn(policy.deadLetterTargetArn);
      return h("p", ["After ", count(Number(policy.maxReceiveCount)), " receives a message is moved to ", h("a", { href: queueLink(name) }, h("bdi", name)), "."]);
    }

    const columns = [["Started", ""], ["State", ""], ["Moved", ""], ["To", "name"], ["", ""]];
    const row = (task) => ({
      key: task.started,
      cells: [
        time(task.started),
        [task.status.toLowerCase(), task.failure ? `: ${task.failure}` : ""],
        [
          `${count(task.moved)} of ${count(task.to_move)} `,
          h("progress", { value: task.moved, max: Math.max(task.to_move, 1), "aria-label": "Moved messages" }),
        ],
        task.destination_arn ? h("bdi", nameIn(task.destination_arn)) : "original queues",
        task.task_handle ? h("button", { type: "button", disabled: act.busy, onClick: () => cancel(task.task_handle) }, "Cancel") : "",
      ],
    });

    return () => [
      h("section", { "aria-labelledby": "own" }, [h("h2", { id: "own" }, "Its dead-letter queue"), own()]),
      h("section", { "aria-labelledby": "redrive" }, [
        h("h2", { id: "redrive" }, "Move messages back"),
        h("p", "A dead-letter queue’s messages can be moved back to the queues from which they came, or to another queue."),
        h("form", { class: "line", onSubmit: submit }, [
          input(form, "destination", "To (empty: the original queues)", { autocomplete: "off", spellcheck: "false" }),
          input(form, "rate", "Messages per second (empty: as fast as possible)", { type: "number", min: 1, max: 500 }),
          h("button", { type: "submit", class: "primary", disabled: act.busy }, "Start"),
        ]),
        outcome(act),
        props.shown.move_tasks.length ? table("Moves", columns, props.shown.move_tasks.map(row)) : null,
      ]),
    ];
  },
};
