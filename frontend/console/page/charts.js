// Charts of a queue, drawn by Chart.js; loaded with the first page that has one.

import "/console/chart.js";
import { localTime, rate } from "./text.js";

const { h, onMounted, onUnmounted, ref, watch } = Vue;
const COLOURS = ["--line-1", "--line-2", "--line-3"];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Lines over time: `samples` are objects with `time`, `lines` are [label, member]; `label` names a sample otherwise. */
export const LineChart = {
  props: ["title", "samples", "lines", "unit", "label"],
  setup(props) {
    const canvas = ref(null);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    let chart = null;

    function data() {
      return {
        labels: props.samples.map(props.label || ((one) => localTime(one.time).split(", ").at(-1))),
        datasets: props.lines.map(([label, member], at) => ({
          label,
          data: props.samples.map((one) => one[member]),
          borderColor: colour(COLOURS[at]),
          backgroundColor: colour(COLOURS[at]),
          borderDash: [[], [6, 3], [2, 2]][at],
          borderWidth: 2,
          pointRadius: props.samples.length < 2 ? 3 : 0,
          tension: 0,
        })),
      };
    }

    function draw() {
      chart?.destroy();
      const text = colour("--text");
      const grid = { color: colour("--rule") };
      chart = new globalThis.Chart(canvas.value, {
        type: "line",
        data: data(),
        options: {
          animation: still.matches ? false : { duration: 0 },
          maintainAspectRatio: false,
          interaction: { mode: "index", intersect: false },
          plugins: { legend: { labels: { color: text, boxHeight: 1 } } },
          scales: {
            x: { ticks: { color: text, maxTicksLimit: 6, maxRotation: 0 }, grid },
            y: { beginAtZero: true, suggestedMax: 1, ticks: { color: text, maxTicksLimit: 5 }, grid },
          },
        },
      });
    }

    onMounted(() => {
      draw();
      dark.addEventListener("change", draw);
    });
    onUnmounted(() => {
      dark.removeEventListener("change", draw);
      chart?.destroy();
    });
    watch(() => props.samples, () => {
      if (!chart) return;
      chart.data = data();
      chart.update("none");
    });

    function spoken() {
      const last = props.samples.at(-1);
      if (!last) return `${props.title}: no values yet`;
      return `${props.title}. Now: ${props.lines.map(([label, member]) => `${label} ${rate(last[member])}`).join(", ")} ${props.unit}`;
    }
    return () =>
      h("figure", [
        h("figcaption", props.title),
        h("div", { class: "chart" }, h("canvas", { ref: canvas, role: "img", "aria-label": spoken() })),
      ]);
  },
};
