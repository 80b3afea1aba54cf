// The session, and calls of the REST interface.
//
// The credential that someone signs in with is exchanged for a token of an hour, and forgotten.  The token is a
// variable of this module: no cookie, no storage, no URL has it.  It ends with the tab, with its hour, and with the
// credential.

import { signedHeaders } from "./signing.js";

const { reactive } = Vue;
const TOKEN_SECONDS = 3600;
const region = document.querySelector("meta[name=holdfast-region]").content;

export const session = reactive({
  caller: null, // the answer of /v1/caller; null: not signed in
  account: "", // the account whose queues are shown
  notice: "", // why the last session ended
});

let token = "";
let expiry = 0;

/** An answer of the service that is an error. */
export class Refusal extends Error {
  constructor(status, problem, retryAfter) {
    super(problem.detail || `The service answered with the status ${status}.`);
    this.status = status;
    this.code = problem.code || "";
    this.retryAfter = retryAfter;
  }
}

async function fetched(method, path, headers, body, { signal, as = "json" } = {}) {
  let answer;
  try {
    answer = await fetch(path, { method, headers, body, signal, credentials: "omit", cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { detail: "The service cannot be reached. The console tries again by itself." }, 0);
  }
  if (answer.ok && as === "stream") return answer.body;
  if (answer.ok) return answer.status === 204 ? null : answer[as]();
  const problem = await answer.json().catch(() => ({}));
  throw new Refusal(answer.status, problem, Number(answer.headers.get("retry-after")) || 0);
}

/** Calls the REST interface.  `json` or `text` is the body, `as` the form of the answer; members of `query` that are undefined are left out. */
export async function call(method, path, { query = {}, json, text, signal, as } = {}) {
  const parameters = new URLSearchParams();
  const all = { account: session.account === session.caller?.account ? undefined : session.account, ...query };
  for (const [name, value] of Object.entries(all)) if (value !== undefined && value !== "") parameters.set(name, value);
  const headers = { authorization: `Bearer ${token}` };
  let body;
  if (json !== undefined) {
    headers["content-type"] = "application/json";
    body = JSON.stringify(json);
  } else if (text !== undefined) {
    headers["content-type"] = "text/plain; charset=utf-8";
    body = text;
  }
  const used = token;
  try {
    return await fetched(method, `/v1/${path}${parameters.size ? `?${parameters}` : ""}`, headers, body, { signal, as });
  } catch (error) {
    if (error.status === 401 && used === token) signOut("Your session has ended. Sign in again.");
    throw error;
  }
}

/** Follows live numbers: `onEvent` gets the kind and the content of each event.  Ends when the service ends it. */
export async function follow(query, onEvent, signal) {
  const body = await call("GET", "events", { query, signal, as: "stream" });
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true }; // the connection was lost
    });
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const one of events) {
      const found = /^event: (.*)\ndata: (.*)$/.exec(one);
      if (found) onEvent(found[1], JSON.parse(found[2]));
    }
  }
}

/** Has the browser save an answer of the REST interface as a file. */
export async function download(path, query, name) {
  const content = new Blob([await call("GET", path, { query, as: "blob" })]);
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(content), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

async function start(given, seconds) {
  const caller = await fetched("GET", "/v1/caller", { authorization: `Bearer ${given}` });
  token = given;
  clearTimeout(expiry);
  const left = seconds ?? (caller.expires ? caller.expires - Date.now() / 1000 : TOKEN_SECONDS);
  expiry = setTimeout(signOut, Math.max(0, Math.min(left, 86_400)) * 1000, "Your session has expired. Sign in again.");
  session.account = caller.account;
  session.notice = "";
  session.caller = caller;
}

const TOKEN_REQUEST = JSON.stringify({ seconds: TOKEN_SECONDS });
const AS_JSON = { "content-type": "application/json" };

/** Signs in with an API key, or with a token of this service or of the OIDC issuer. */
export async function signInWithBearer(presented) {
  if (!presented.startsWith("hf_")) return start(presented);
  const headers = { authorization: `Bearer ${presented}`, ...AS_JSON };
  return start((await fetched("POST", "/v1/token", headers, TOKEN_REQUEST)).token, TOKEN_SECONDS);
}

/** Buys a token with an API key, which is sent once. */
export const buyToken = (key, asked) =>
  fetched("POST", "/v1/token", { authorization: `Bearer ${key}`, ...AS_JSON }, JSON.stringify(asked));

/** Signs in with an access key, whose secret does not leave this function. */
export async function signInWithAccessKey(id, secret) {
  const headers = await signedHeaders("POST", "/v1/token", TOKEN_REQUEST, { id, secret }, region);
  return start((await fetched("POST", "/v1/token", { ...headers, ...AS_JSON }, TOKEN_REQUEST)).token, TOKEN_SECONDS);
}

export function signOut(notice = "") {
  token = "";
  clearTimeout(expiry);
  session.caller = null;
  session.account = "";
  session.notice = notice;
}

/** Whether the caller administers an account. */
export const administers = () => may("manage") && ["admin", "operator"].includes(session.caller.role);

export const may = (scope) => Boolean(session.caller?.scopes.includes(scope));

/** Whether the caller has a right on streams: "read", "write" or "manage". */
export const mayStream = (right) => may(`streams:${right}`);
export const usesStreams = () => has("streams") && ["read", "write", "manage"].some(mayStream);

/** Whether a part of the service is on: "streams" or "topics". */
const has = (feature) => session.caller.features.includes(feature);
export const usesTopics = () => has("topics") && (may("manage") || may("send"));

export const streamPath = (name, rest = "") => `streams/${encodeURIComponent(name)}${rest}`;

export const topicPath = (name, rest = "") => `topics/${encodeURIComponent(name)}${rest}`;

/** Path of a queue below /v1/. */
export const queuePath = (name, rest = "") => `queues/${encodeURIComponent(name)}${rest}`;
