// @aws-sdk/client-sns: every action, typed errors, paging, envelopes, and the npm validators of their signatures.

import assert from "node:assert/strict";
import { Agent } from "node:https";
import { promisify } from "node:util";
import {
  AuthorizationErrorException,
  BatchEntryIdsNotDistinctException,
  EmptyBatchRequestException,
  InvalidBatchEntryIdException,
  InvalidParameterException,
  InvalidParameterValueException,
  NotFoundException,
  paginateListSubscriptions,
  paginateListSubscriptionsByTopic,
  paginateListTopics,
  ResourceNotFoundException,
  SNS,
  TagLimitExceededException,
  TooManyEntriesInBatchRequestException,
} from "@aws-sdk/client-sns";
import PayloadValidator from "sns-payload-validator";
import MessageValidator from "sns-validator";
import { arnOf, LONG_POLL_SECONDS, newClient, newName, newQueue, noted, receiveOne, refused, sqs } from "./kit.mjs";

const newSns = (settings = {}) => noted(new SNS({ maxAttempts: 1, ...settings }));
const sns = newSns();
const service = new URL(process.env.AWS_ENDPOINT_URL_SNS);

async function newTopic(what, Attributes = {}) {
  const suffix = Attributes.FifoTopic ? ".fifo" : "";
  return (await sns.createTopic({ Name: newName(what, suffix), Attributes })).TopicArn;
}

// Subscribe a new queue that lets the topic in.
async function subscribed(TopicArn, Attributes = {}, queueAttributes = {}) {
  const url = await newQueue("subscribed", queueAttributes);
  const Endpoint = await arnOf(url);
  const statement = {
    Effect: "Allow",
    Principal: { Service: "sns.amazonaws.com" },
    Action: "sqs:SendMessage",
    Resource: Endpoint,
    Condition: { ArnEquals: { "aws:SourceArn": TopicArn } },
  };
  const Policy = JSON.stringify({ Version: "2012-10-17", Statement: [statement] });
  await sqs.setQueueAttributes({ QueueUrl: url, Attributes: { Policy } });
  const { SubscriptionArn } = await sns.subscribe({ TopicArn, Protocol: "sqs", Endpoint, Attributes });
  return { url, Endpoint, SubscriptionArn };
}

const received = async (url) => (await receiveOne(url)).Body;

export async function sns_manages_a_topic() {
  const Name = newName("manage");
  const Tags = [{ Key: "team", Value: "blue" }];
  const { TopicArn } = await sns.createTopic({ Name, Attributes: { DisplayName: "grüße" }, Tags });
  assert.equal((await sns.createTopic({ Name })).TopicArn, TopicArn);
  await sns.setTopicAttributes({ TopicArn, AttributeName: "SignatureVersion", AttributeValue: "2" });
  const { Attributes } = await sns.getTopicAttributes({ TopicArn });
  assert.equal(Attributes.DisplayName, "grüße");
  assert.equal(Attributes.SignatureVersion, "2");
  assert.equal(Attributes.TopicArn, TopicArn);
  await sns.tagResource({ ResourceArn: TopicArn, Tags: [{ Key: "cost", Value: "" }] });
  await sns.untagResource({ ResourceArn: TopicArn, TagKeys: ["team"] });
  assert.deepEqual((await sns.listTagsForResource({ ResourceArn: TopicArn })).Tags, [{ Key: "cost", Value: "" }]);
  const permission = { TopicArn, Label: "l", AWSAccountId: ["111122223333"], ActionName: ["Publish", "Subscribe"] };
  await sns.addPermission(permission);
  const policy = JSON.parse((await sns.getTopicAttributes({ TopicArn })).Attributes.Policy);
  assert.deepEqual(policy.Statement[1].Action, ["SNS:Publish", "SNS:Subscribe"]);
  await sns.removePermission({ TopicArn, Label: "l" });
  await sns.deleteTopic({ TopicArn });
  await refused(sns.getTopicAttributes({ TopicArn }), NotFoundException, 404, /does not exist/);
}

export async function sns_delivers_envelopes_and_raw_messages() {
  const TopicArn = await newTopic("deliver");
  const FilterPolicy = JSON.stringify({ kind: [{ "anything-but": ["a"] }] });
  const enveloped = await subscribed(TopicArn, { FilterPolicy });
  const raw = await subscribed(TopicArn, { RawMessageDelivery: "true", FilterPolicy });
  const kind = (value) => ({ kind: { DataType: "String", StringValue: value } });
  await sns.publish({ TopicArn, Message: "no", MessageAttributes: kind("a") });
  const bytes = { DataType: "Binary", BinaryValue: Uint8Array.of(0, 255) };
  const Message = "grüße <&> \r\n\t 🐘";
  const published = { TopicArn, Message, Subject: "ü", MessageAttributes: { ...kind("b"), bytes } };
  const { MessageId } = await sns.publish(published);
  const envelope = JSON.parse(await received(enveloped.url));
  assert.equal(envelope.MessageId, MessageId);
  assert.equal(envelope.Message, Message);
  assert.equal(envelope.Subject, "ü");
  assert.deepEqual(envelope.MessageAttributes.bytes, { Type: "Binary", Value: "AP8=" });
  const message = await receiveOne(raw.url, { MessageAttributeNames: ["All"] });
  assert.equal(message.Body, Message);
  assert.deepEqual(message.MessageAttributes.bytes.BinaryValue, Uint8Array.of(0, 255));
  const entries = ["1", "2"].map((Id) => ({ Id, Message: Id, MessageAttributes: kind(Id) }));
  const batch = await sns.publishBatch({ TopicArn, PublishBatchRequestEntries: entries });
  assert.deepEqual(batch.Successful.map((entry) => entry.Id), ["1", "2"]);
  assert.deepEqual([await received(raw.url), await received(raw.url)].sort(), ["1", "2"]);
}

export async function sns_keeps_the_order_of_a_fifo_topic() {
  const TopicArn = await newTopic("order", { FifoTopic: "true", ContentBasedDeduplication: "true" });
  const { url } = await subscribed(TopicArn, {}, { FifoQueue: "true" });
  const numbers = [];
  for (const Message of ["a", "a", "b"]) {
    numbers.push((await sns.publish({ TopicArn, Message, MessageGroupId: "g" })).SequenceNumber);
  }
  assert.equal(numbers[0], numbers[1]);
  assert.ok(BigInt(numbers[2]) > BigInt(numbers[1]));
  const first = JSON.parse(await received(url));
  assert.equal(first.Message, "a");
  assert.ok(first.SequenceNumber);
  assert.equal(first.Signature, undefined);
}

export async function sns_manages_subscriptions() {
  const TopicArn = await newTopic("subscriptions");
  const one = await subscribed(TopicArn);
  const { SubscriptionArn } = one;
  const set = (AttributeName, AttributeValue) =>
    sns.setSubscriptionAttributes({ SubscriptionArn, AttributeName, AttributeValue });
  await set("FilterPolicyScope", "MessageBody");
  await set("FilterPolicy", '{"a":{"b":[{"exists":true}]}}');
  const { Attributes } = await sns.getSubscriptionAttributes({ SubscriptionArn });
  assert.equal(Attributes.FilterPolicyScope, "MessageBody");
  assert.equal(Attributes.FilterPolicy, '{"a":{"b":[{"exists":true}]}}');
  assert.equal(Attributes.Endpoint, one.Endpoint);
  await refused(set("FilterPolicy", '{"a":[{"nothing":1}]}'), InvalidParameterException, 400, /FilterPolicy/);
  await refused(sns.confirmSubscription({ TopicArn, Token: "0" }), InvalidParameterException, 400, /Token/);
  await sns.unsubscribe({ SubscriptionArn });
  await refused(sns.getSubscriptionAttributes({ SubscriptionArn }), NotFoundException, 404, /does not exist/);
}

export async function sns_lists_in_pages() {
  const TopicArn = await newTopic("pages");
  const topics = new Set();
  await Promise.all(Array.from({ length: 101 }, async () => topics.add(await newTopic("page"))));
  const Endpoint = await arnOf(await newQueue("page"));
  const subscribe = async (_, i) => {
    const { SubscriptionArn } = await sns.subscribe({ TopicArn, Protocol: "sqs", Endpoint: `${Endpoint}-${i}` });
    return SubscriptionArn;
  };
  const subscriptions = new Set(await Promise.all(Array.from({ length: 101 }, subscribe)));
  const all = async (pages, name) => {
    const found = [];
    let count = 0;
    for await (const page of pages) {
      assert.ok(page[name].length <= 100);
      found.push(...page[name]);
      count += 1;
    }
    assert.ok(count > 1, `${name}: one page`);
    return found;
  };
  const listed = (await all(paginateListTopics({ client: sns }, {}), "Topics")).map((topic) => topic.TopicArn);
  assert.ok([...topics].every((topic) => listed.includes(topic)));
  assert.equal(new Set(listed).size, listed.length);
  const own = await all(paginateListSubscriptionsByTopic({ client: sns }, { TopicArn }), "Subscriptions");
  assert.deepEqual(new Set(own.map((one) => one.SubscriptionArn)), subscriptions);
  const everything = await all(paginateListSubscriptions({ client: sns }, {}), "Subscriptions");
  assert.ok(everything.length >= 101);
}

export async function sns_errors_are_typed() {
  const TopicArn = await newTopic("typed");
  const missing = `${TopicArn}-missing`;
  await refused(sns.publish({ TopicArn: missing, Message: "x" }), NotFoundException, 404, /does not exist/);
  await refused(sns.publish({ TopicArn, Message: "" }), InvalidParameterException, 400, /Empty message/);
  const bad = { TopicArn, Message: "x", MessageAttributes: { n: { DataType: "Number", StringValue: "x" } } };
  await refused(sns.publish(bad), InvalidParameterValueException, 400, /cast message attribute 'n'/);
  const batch = (...ids) =>
    sns.publishBatch({ TopicArn, PublishBatchRequestEntries: ids.map((Id) => ({ Id, Message: "x" })) });
  await refused(batch(), EmptyBatchRequestException, 400, /any entries/);
  await refused(batch("a", "a"), BatchEntryIdsNotDistinctException, 400, /same Id/);
  await refused(batch("a b"), InvalidBatchEntryIdException, 400, /alphanumeric/);
  await refused(batch(..."abcdefghijk"), TooManyEntriesInBatchRequestException, 400, /more entries/);
  await refused(sns.listTagsForResource({ ResourceArn: missing }), ResourceNotFoundException, 404, /does not exist/);
  const Tags = Array.from({ length: 51 }, (_, i) => ({ Key: `${i}`, Value: "" }));
  await refused(sns.tagResource({ ResourceArn: TopicArn, Tags }), TagLimitExceededException, 400, /quota/);
  const foreign = TopicArn.replace(/:\d{12}:/, ":111122223333:");
  await refused(sns.publish({ TopicArn: foreign, Message: "x" }), AuthorizationErrorException, 403, /not authorized/);
  await assert.rejects(sns.publish({ PhoneNumber: "+491111111", Message: "x" }), InvalidParameterException);
  const accessKeyId = process.env.AWS_ACCESS_KEY_ID;
  const stranger = newSns({ credentials: { accessKeyId, secretAccessKey: "guessed" } });
  await assert.rejects(stranger.listTopics(), { name: "SignatureDoesNotMatch" });
}

// Four envelopes: of both versions of signatures, with a subject and without.
async function envelopes(receive = received) {
  const found = [];
  for (const SignatureVersion of ["1", "2"]) {
    const TopicArn = await newTopic("signed", { SignatureVersion });
    const { url } = await subscribed(TopicArn);
    await sns.publish({ TopicArn, Message: "grüße", Subject: "S" });
    await sns.publish({ TopicArn, Message: "without a subject" });
    found.push(await receive(url), await receive(url));
  }
  return found;
}

const forged = (envelope) => JSON.stringify({ ...JSON.parse(envelope), Message: "forged" });

// sns-validator is told another host by its pattern.
export async function sns_validator_accepts_signatures() {
  const { host } = service;
  const validating = (pattern) => {
    const validator = new MessageValidator(pattern);
    return promisify((envelope, done) => validator.validate(envelope, done));
  };
  const validate = validating(new RegExp(`^${host.replaceAll(".", "\\.")}$`));
  for (const envelope of await envelopes()) {
    assert.equal((await validate(envelope)).MessageId, JSON.parse(envelope).MessageId);
    await assert.rejects(validate(forged(envelope)), /signature is invalid/);
    await assert.rejects(validating()(envelope), /invalid domain/);
  }
}

// sns-payload-validator cannot be told another host.  It is content where the name of AWS's host leads to this service:
// the one who receives has to call it by that name, because the envelope's URLs are of the host that was called.
export async function sns_payload_validator_accepts_signatures() {
  const agent = new Agent();
  agent.createConnection = (options, done) =>
    Agent.prototype.createConnection.call(agent, { ...options, host: service.hostname, port: service.port }, done);
  const awsHost = `sns.${process.env.AWS_REGION}.amazonaws.com`;
  const requestHandler = { httpsAgent: agent };
  const receiver = newClient({ endpoint: `https://${awsHost}`, useQueueUrlAsEndpoint: false, requestHandler });
  const receive = async (QueueUrl) => {
    const { Messages } = await receiver.receiveMessage({ QueueUrl, WaitTimeSeconds: LONG_POLL_SECONDS });
    return Messages[0].Body;
  };
  const validator = new PayloadValidator({ requestAgent: agent });
  for (const envelope of await envelopes(receive)) {
    assert.equal(new URL(JSON.parse(envelope).SigningCertURL).host, awsHost);
    assert.equal((await validator.validate(envelope)).MessageId, JSON.parse(envelope).MessageId);
    await assert.rejects(validator.validate(forged(envelope)), /Invalid Signature/);
  }
  agent.destroy();
}
