// Take all the steps, side by side, and print what became of each as JSON.

import * as consumer from "./consumer.mjs";
import { called, sqs } from "./kit.mjs";
import * as sdk from "./sdk.mjs";

const steps = Object.entries({ ...sdk, ...consumer });
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
