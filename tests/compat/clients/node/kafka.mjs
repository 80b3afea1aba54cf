// kafkajs: reads scenarios as JSON, performs their steps, and prints the results as JSON, as
// tests/compat/kafka/clients/kit.py describes.  Scenarios have topics of their own, so they run side by side.
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { text as readAll } from "node:stream/consumers";
import { promisify } from "node:util";
import zlib from "node:zlib";

import kafkajs from "kafkajs";
import snappy from "kafkajs-snappy";
import lz4 from "lz4js";

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = kafkajs;
const WAIT_MS = 40_000;
const TOPIC_EXISTS = 36;
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
};
const zstdCompress = promisify(zlib.zstdCompress);
const zstdDecompress = promisify(zlib.zstdDecompress);

// The client has gzip; users add the others.
CompressionCodecs[CompressionTypes.Snappy] = snappy;
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: (encoder) => zstdCompress(encoder.buffer),
  decompress: (buffer) => zstdDecompress(buffer),
});

class TopicExists extends Error {
  code = TOPIC_EXISTS;
}

const text = (data) => (data === null || data === undefined ? null : data.toString());

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Wait until a function returns true.  Throws an error with `what()` after a while. */
async function until(condition, what) {
  const end = Date.now() + WAIT_MS;
  while (!condition()) {
    if (Date.now() > end) throw new Error(what());
    await pause(20);
  }
}

function numbers(rows) {
  return rows.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
}

function headersOf(pairs) {
  const found = {};
  for (const [name, value] of pairs) found[name] = name in found ? [].concat(found[name], value) : value;
  return found;
}

function recordOf({ message }) {
  const headers = Object.entries(message.headers ?? {}).flatMap(([name, values]) =>
    [].concat(values).map((value) => [name, text(value)]),
  );
  return {
    offset: Number(message.offset),
    key: text(message.key),
    value: text(message.value),
    headers,
    timestamp: Number(message.timestamp),
  };
}

/** Operations of scenarios. */
class Client {
  constructor(kafka) {
    this.kafka = kafka;
  }

  async withAdmin(work) {
    const admin = this.kafka.admin();
    await admin.connect();
    try {
      return await work(admin);
    } finally {
      await admin.disconnect();
    }
  }

  /** Run a consumer of a topic for the time of `work(consumer)`; `onMessage` gets each record, `onJoin` the partitions
   * that it is given. */
  async withConsumer(topic, groupId, onMessage, work, onJoin = () => {}) {
    const consumer = this.kafka.consumer({ groupId });
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => onJoin(payload.memberAssignment[topic] ?? []));
    await consumer.connect();
    try {
      await consumer.subscribe({ topics: [topic], fromBeginning: true });
      await consumer.run({ autoCommit: false, eachMessage: async (one) => onMessage(one) });
      return await work(consumer);
    } finally {
      await consumer.disconnect();
    }
  }

  // --- topics ---------------------------------------------------------------------------------------------

  create({ topic, partitions, configs }) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }));
    const made = { topic, numPartitions: partitions, replicationFactor: 1, configEntries };
    return this.withAdmin(async (admin) => {
      if (!(await admin.createTopics({ topics: [made] }))) throw new TopicExists(topic); // its way to say so
    });
  }

  topics({ prefix }) {
    return this.withAdmin(async (admin) => (await admin.listTopics()).filter((name) => name.startsWith(prefix)).sort());
  }

  partitions({ topic }) {
    return this.withAdmin(async (admin) => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length);
  }

  grow({ topic, partitions }) {
    return this.withAdmin(async (admin) => {
      await admin.createPartitions({ topicPartitions: [{ topic, count: partitions }] });
    });
  }

  configs({ topic, names }) {
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic, configNames: names };
    return this.withAdmin(async (admin) => {
      const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [resource] });
      const found = Object.fromEntries(resources[0].configEntries.map((one) => [one.configName, one.configValue]));
      return Object.fromEntries(names.map((name) => [name, found[name]]));
    });
  }

  alter({ topic, configs }) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }));
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic, configEntries };
    return this.withAdmin(async (admin) => {
      await admin.alterConfigs({ validateOnly: false, resources: [resource] });
    });
  }

  delete({ topic }) {
    return this.withAdmin((admin) => admin.deleteTopics({ topics: [topic] }));
  }

  delete_records({ topic, partition, before }) {
    return this.withAdmin(async (admin) => {
      await admin.fetchTopicOffsets(topic); // it does not read the topic's metadata by itself before a deletion
      await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] });
      const offsets = await admin.fetchTopicOffsets(topic);
      return Number(offsets.find((one) => one.partition === partition).low);
    });
  }

  // --- records --------------------------------------------------------------------------------------------

  async produce({ topic, records, codec, idempotent, acks }) {
    const producer = this.kafka.producer({ idempotent, maxInFlightRequests: 1 });
    await producer.connect();
    try {
      const messages = records.map(({ key, value, headers, partition, timestamp }) => {
        return { key, value, partition, headers: headersOf(headers), timestamp: String(timestamp) };
      });
      const sent = await producer.send({ topic, messages, acks: acks === "all" ? -1 : acks, compression: CODECS[codec] });
      const next = Object.fromEntries(sent.map((one) => [one.partition, Number(one.baseOffset)]));
      return records.map(({ partition }) => [partition, next[partition]++]);
    } finally {
      await producer.disconnect();
    }
  }

  async read({ topic, partition, offset, count }) {
    const found = [];
    const onMessage = (one) => {
      if (one.partition === partition && Number(one.message.offset) === offset + found.length) found.push(recordOf(one));
    };
    await this.withConsumer(topic, `reader-${randomUUID()}`, onMessage, async (consumer) => {
      consumer.seek({ topic, partition, offset: String(offset) });
      await until(() => found.length >= count, () => `${found.length} of ${count} records`);
    });
    return found.slice(0, count);
  }

  async seek({ topic, partition, offsets, count }) {
    let wanted = -1;
    let found = [];
    const onMessage = (one) => {
      const offset = Number(one.message.offset);
      if (wanted >= 0 && one.partition === partition && offset === wanted + found.length) found.push(offset);
    };
    return this.withConsumer(topic, `seeker-${randomUUID()}`, onMessage, async (consumer) => {
      const all = [];
      for (const offset of offsets) {
        wanted = offset;
        found = [];
        consumer.seek({ topic, partition, offset: String(offset) });
        await until(() => found.length >= count, () => `${found.length} of ${count} records from ${offset}`);
        all.push(found.slice(0, count));
      }
      return all;
    });
  }

  offsets({ topic, partition }) {
    return this.withAdmin(async (admin) => {
      const { low, high } = (await admin.fetchTopicOffsets(topic)).find((one) => one.partition === partition);
      return [Number(low), Number(high)];
    });
  }

  offset_at({ topic, partition, timestamp }) {
    return this.withAdmin(async (admin) => {
      const offsets = await admin.fetchTopicOffsetsByTimestamp(topic, timestamp);
      return Number(offsets.find((one) => one.partition === partition).offset);
    });
  }

  // --- groups ---------------------------------------------------------------------------------------------

  async consume({ topic, group, count }) {
    const found = [];
    const onMessage = (one) => found.push([one.partition, Number(one.message.offset), text(one.message.value)]);
    await this.withConsumer(topic, group, onMessage, async (consumer) => {
      await until(() => found.length >= count, () => `${found.length} of ${count} records`);
      const next = {};
      for (const [partition, offset] of found) next[partition] = Math.max(next[partition] ?? 0, offset + 1);
      await consumer.commitOffsets(
        Object.entries(next).map(([partition, offset]) => ({ topic, partition: Number(partition), offset: String(offset) })),
      );
    });
    return numbers(found);
  }

  async rebalance(group) {
    return (await this.roundrobin_assignor(group)).map((shares) => shares.flat().sort((a, b) => a - b));
  }

  /** Partitions of each member while there is one, two and one. */
  async roundrobin_assignor({ topic, group, partitions }) {
    const assigned = [[], []];
    const shares = async (...counts) => {
      await until(
        () => counts.every((count, member) => assigned[member].length === count),
        () => `assignments are ${JSON.stringify(assigned)}`,
      );
      return assigned.filter((share) => share.length).map((share) => share.toSorted((a, b) => a - b)).sort((a, b) => a[0] - b[0]);
    };
    const join = (member, work) =>
      this.withConsumer(topic, group, () => {}, work, (given) => (assigned[member] = given));
    return join(0, async () => {
      const alone = await shares(partitions);
      const both = await join(1, () => shares(partitions / 2, partitions / 2));
      assigned[1] = [];
      return [alone, both, await shares(partitions, 0)];
    });
  }

  committed({ topic, group }) {
    return this.withAdmin(async (admin) => {
      const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] });
      const rows = found.partitions.map((one) => [one.partition, Number(one.offset)]);
      return numbers(rows.filter(([, offset]) => offset >= 0));
    });
  }

  reset({ topic, group, partition, offset }) {
    const partitions = [{ partition, offset: String(offset) }];
    return this.withAdmin((admin) => admin.setOffsets({ groupId: group, topic, partitions }));
  }

  groups({ prefix }) {
    return this.withAdmin(async (admin) => {
      const { groups } = await admin.listGroups();
      return groups.map((one) => one.groupId).filter((name) => name.startsWith(prefix)).sort();
    });
  }

  group_state({ group }) {
    return this.withAdmin(async (admin) => (await admin.describeGroups([group])).groups[0].state.toLowerCase());
  }

  delete_group({ group }) {
    return this.withAdmin(async (admin) => {
      await admin.deleteGroups([group]);
    });
  }
}

/** Code of the service's error, or undefined. */
function codeOf(error) {
  return error.code > 0 ? error.code : (error.errors?.map(codeOf).find(Boolean) ?? (error.cause && codeOf(error.cause)));
}

async function perform(client, steps) {
  const results = [];
  for (const [operation, parameters] of steps) {
    if (!(operation in client)) return [...results, { missing: operation }];
    try {
      results.push((await client[operation](parameters)) ?? null);
    } catch (error) {
      const code = codeOf(error);
      if (code === undefined) return [...results, { failure: error.stack }];
      results.push({ error: code });
    }
  }
  return results;
}

function kafkaOf({ address, mechanism, user, password, certificate }) {
  const sasl = { mechanism: mechanism.toLowerCase(), username: user, password };
  if (mechanism === "OAUTHBEARER") sasl.oauthBearerProvider = async () => ({ value: password });
  const ssl = certificate ? { ca: [readFileSync(certificate)] } : false;
  return new Kafka({ brokers: [address], sasl, ssl, logLevel: logLevel.NOTHING });
}

process.env.KAFKAJS_NO_PARTITIONER_WARNING = "1";
const given = JSON.parse(await readAll(process.stdin));
const client = new Client(kafkaOf(given.sign_in));
const names = Object.keys(given.scenarios);
const results = await Promise.all(names.map((name) => perform(client, given.scenarios[name])));
console.log(JSON.stringify(Object.fromEntries(names.map((name, at) => [name, results[at]]))));
