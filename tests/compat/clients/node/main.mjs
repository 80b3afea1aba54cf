// Take all the steps of the modules that the arguments name, side by side, and print what became of each as JSON.

import { called, sqs } from "./kit.mjs";

const modules = await Promise.all(process.argv.slice(2).map((name) => import(`./${name}`)));
const steps = modules.flatMap((module) => Object.entries(module));
const taken = await Promise.all(
  steps.map(async ([name, step]) => {
    try {
      await step();
      return [name, null];
    } catch (error) {
      return [name, error.stack];
    }
  }),
);
console.log(JSON.stringify({ failures: Object.fromEntries(taken), called: [...called] }));
sqs.destroy();
