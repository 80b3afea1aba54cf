// sqs-consumer: batches, retries, partial acknowledgement, heartbeats, FIFO order and stopping.

import assert from "node:assert/strict";
import { once } from "node:events";
import { setTimeout as pause } from "node:timers/promises";
import { Consumer } from "sqs-consumer";
import { counters, newClient, newQueue, sqs, waitUntil } from "./kit.mjs";

// Run a consumer until `done` says so; then it is stopped, and no error but those of handlers may have been seen.
async function consume(queueUrl, options, done) {
  const errors = [];
  const consumer = Consumer.create({ queueUrl, sqs: newClient(), ...options });
  consumer.on("error", (error) => errors.push(error));
  consumer.start();
  try {
    await waitUntil(done, "the consumer has done its work", 40);
  } finally {
    const stopped = once(consumer, "stopped");
    consumer.stop({ abort: true });
    await stopped;
  }
  assert.deepEqual(errors.filter((error) => !/abort/i.test(`${error.name} ${error.message}`)), []);
}

async function send(QueueUrl, bodies, extra = {}) {
  for (let start = 0; start < bodies.length; start += 10) {
    const Entries = bodies.slice(start, start + 10).map((body) => ({ Id: body, MessageBody: body, ...extra }));
    assert.equal((await sqs.sendMessageBatch({ QueueUrl, Entries })).Failed?.length ?? 0, 0);
  }
}

const isEmpty = async (url) => (await counters(url)).every((count) => count === 0);
const numbers = (count) => Array.from({ length: count }, (_, i) => `${i}`);

export async function consumer_handles_batches() {
  const url = await newQueue("consume");
  await send(url, numbers(25));
  const seen = [];
  const handleMessageBatch = async (messages) => {
    seen.push(...messages.map((m) => m.Body));
    return messages;
  };
  await consume(url, { batchSize: 10, handleMessageBatch }, () => isEmpty(url));
  assert.deepEqual(seen.sort((a, b) => a - b), numbers(25));
}

export async function consumer_gives_back_what_failed() {
  const url = await newQueue("retry", { VisibilityTimeout: "600" });
  await send(url, ["once", "twice"]);
  const counts = [];
  const handleMessage = async (message) => {
    const count = message.Attributes.ApproximateReceiveCount;
    counts.push(`${message.Body} ${count}`);
    if (message.Body === "twice" && count === "1") throw new Error("not yet");
    return message;
  };
  const messageSystemAttributeNames = ["ApproximateReceiveCount"];
  const errors = [];
  const consumer = Consumer.create({
    queueUrl: url,
    sqs,
    handleMessage,
    messageSystemAttributeNames,
    terminateVisibilityTimeout: true,
  });
  consumer.on("processing_error", (error) => errors.push(error.message));
  consumer.on("error", (error) => errors.push(error.message));
  consumer.start();
  await waitUntil(() => isEmpty(url), "both messages were handled");
  consumer.stop({ abort: true });
  assert.deepEqual(counts.sort(), ["once 1", "twice 1", "twice 2"]);
  assert.deepEqual(errors.filter((text) => !/abort/i.test(text)), ["Unexpected message handler failure: not yet"]);
}

export async function consumer_acknowledges_in_part() {
  const url = await newQueue("partial");
  await send(url, numbers(6));
  const seen = [];
  const handleMessageBatch = async (messages) => {
    seen.push(...messages.map((m) => m.Body));
    return messages.filter((m) => Number(m.Body) % 2 === 0 || seen.filter((body) => body === m.Body).length > 1);
  };
  await consume(url, { batchSize: 10, visibilityTimeout: 1, handleMessageBatch }, () => isEmpty(url));
  assert.deepEqual(seen.sort(), ["0", "1", "1", "2", "3", "3", "4", "5", "5"]);
}

export async function consumer_heartbeats_keep_a_message() {
  const url = await newQueue("heartbeat");
  await send(url, ["slow"]);
  let deliveries = 0;
  const handleMessage = async (message) => {
    deliveries += 1;
    // It ends between two heartbeats: one that meets the deletion is an error, in SQS too.
    const [{ Messages }] = await Promise.all([
      sqs.receiveMessage({ QueueUrl: url, WaitTimeSeconds: 4 }),
      pause(4_500),
    ]);
    assert.equal(Messages, undefined, "the message came back while it was handled");
    return message;
  };
  await consume(url, { visibilityTimeout: 2, heartbeatInterval: 1, handleMessage }, () => isEmpty(url));
  assert.equal(deliveries, 1);
}

export async function consumer_keeps_the_order_of_a_group() {
  const url = await newQueue("order", { FifoQueue: "true", ContentBasedDeduplication: "true" });
  await send(url, numbers(30), { MessageGroupId: "g" });
  const seen = [];
  const handleMessage = async (message) => {
    seen.push(message.Body);
    return message;
  };
  await consume(url, { batchSize: 1, suppressFifoWarning: true, handleMessage }, () => isEmpty(url));
  assert.deepEqual(seen, numbers(30));
}

export async function consumer_says_that_a_queue_is_missing() {
  const url = (await newQueue("missing")).replace("missing", "gone");
  const consumer = Consumer.create({ queueUrl: url, sqs, handleMessage: async (message) => message });
  const said = once(consumer, "error");
  consumer.start();
  const [error] = await said;
  consumer.stop({ abort: true });
  assert.match(error.message, /The specified queue does not exist/);
  assert.equal(error.code, "QueueDoesNotExist");
}
