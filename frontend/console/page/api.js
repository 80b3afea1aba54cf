// The session, and calls of the REST interface.
//
// The credential that someone signs in with is exchanged for a token of an hour, and forgotten.  The token is a
// variable of this module: no cookie, no storage, no URL has it.  So is a token of the OIDC issuer.  It ends with the
// tab, with its hour, and with the credential.

import { signedHeaders } from "./signing.js";

const { reactive } = Vue;
const TOKEN_SECONDS = 3600;
const region = document.querySelector("meta[name=holdfast-region]").content;

export const session = reactive({
  caller: null, // the answer of /v1/caller; null: not signed in
  account: "", // the account whose queues are shown
  notice: "", // why the last session ended
  issuerSignOut: "", // the page where the issuer's own session is ended, if the session is one of the issuer
});

let token = "";
let expiry = 0;
let watching = 0; // the timer that begins to follow the session
let watch = null; // ends the stream of the session alone
let watchAfter = 0;
let streams = 0; // live streams that are open
let ending = new AbortController(); // aborts the calls of this session and account
const WATCH_MS = 400;
const REPEAT_MS = 3000;
const SILENCE_MS = 75_000; // the service sends something at least every 30 s

/** An answer of the service that is an error. */
export class Refusal extends Error {
  constructor(status, problem, retryAfter) {
    super(problem.detail || `The service answered with the status ${status}.`);
    this.status = status;
    this.code = problem.code || "";
    this.retryAfter = retryAfter;
  }
}

const LOST = "The service cannot be reached. The console tries again by itself.";
const UNCERTAIN = "The connection to the service was lost. It is not known whether the change took effect: check before you repeat it.";
const SIGN_INS = ["/v1/token", "/console/sign-in"];
const UNREADABLE = "The answer of the service cannot be read: the connection was cut off, or something between changed it.";

/** Sends a request to the service, with no credential but those in the headers. */
export async function fetched(method, path, headers, body, { signal, as = "json" } = {}) {
  const lost = SIGN_INS.includes(path) ? "The service cannot be reached. Try again." : method === "GET" ? LOST : UNCERTAIN;
  let answer;
  try {
    answer = await fetch(path, { method, headers, body, signal, credentials: "omit", cache: "no-store", redirect: "error" });
    if (answer.ok && as === "stream") return answer.body;
    if (answer.ok) return answer.status === 204 ? null : await answer[as]();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { detail: !answer ? lost : method === "GET" ? UNREADABLE : `The change was made. ${UNREADABLE}` }, 0);
  }
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
    return await fetched(method, `/v1/${path}${parameters.size ? `?${parameters}` : ""}`, headers, body, {
      signal: signal ? AbortSignal.any([signal, ending.signal]) : ending.signal, as,
    });
  } catch (error) {
    if (error.status === 401 && used === token) signOut("Your session has ended. Sign in again.");
    if (error.code === "OptInRequired" && used === token) signOut(error.message); // the caller's account is suspended
    throw error;
  }
}

/** Follows live numbers: `onEvent` gets the kind and the content of each event.  Ends when the service ends it. */
export async function follow(query, onEvent, signal) {
  const body = await call("GET", "events", { query, signal, as: "stream" });
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", silence = 0;
  streams += 1;
  try {
    for (;;) {
      clearTimeout(silence);
      silence = setTimeout(() => reader.cancel(), SILENCE_MS);
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
        if (found) onEvent(found[1], parsed(found[2]));
      }
    }
  } finally {
    streams -= 1;
    clearTimeout(silence);
    reader.cancel().catch(() => {}); // it may have failed already
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Refusal(0, { detail: UNREADABLE }, 0);
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
  clearInterval(watching);
  watching = setInterval(watchSession, WATCH_MS);
  session.account = caller.account;
  session.notice = session.issuerSignOut = "";
  session.caller = caller;
}

/**
 * Follows the session alone while the page follows nothing else.
 *
 * The service ends each stream within a second after the credential has ended; to follow anew is refused then, which
 * ends the session here.
 */
async function watchSession() {
  if (watch) {
    if (document.hidden || streams > 1) watch.abort();
    return;
  }
  if (document.hidden || streams || Date.now() < watchAfter) return;
  watch = new AbortController();
  try {
    await follow({ session: true, account: undefined }, () => {}, watch.signal);
  } catch (error) {
    if (!(error instanceof Refusal) && error.name !== "AbortError") throw error;
    watchAfter = Date.now() + Math.max(REPEAT_MS, (error.retryAfter || 0) * 1000);
  } finally {
    watch = null;
  }
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

/** Aborts what is under way: an act that has several steps does not go on for another caller or account. */
function endCalls() {
  ending.abort();
  ending = new AbortController();
}

/** Shows another account. */
export function showAccount(account) {
  if (account === session.account) return;
  endCalls();
  session.account = account;
}

export function signOut(notice = "") {
  token = "";
  clearTimeout(expiry);
  clearInterval(watching);
  endCalls();
  session.caller = null;
  session.account = "";
  session.notice = notice;
}

/** True if the caller administers an account. */
export const administers = () => may("manage") && ["admin", "operator"].includes(session.caller.role);

export const may = (scope) => Boolean(session.caller?.scopes.includes(scope));

/** True if the caller has this right on streams: "read", "write" or "manage". */
export const mayStream = (right) => may(`streams:${right}`);
export const usesStreams = () => has("streams") && ["read", "write", "manage"].some(mayStream);

/** Whether a part of the service is on: "streams" or "topics". */
const has = (feature) => session.caller.features.includes(feature);
export const usesTopics = () => has("topics") && (may("manage") || may("send"));

export const streamPath = (name, rest = "") => `streams/${encodeURIComponent(name)}${rest}`;

export const topicPath = (name, rest = "") => `topics/${encodeURIComponent(name)}${rest}`;

/** Path of a queue below /v1/. */
export const queuePath = (name, rest = "") => `queues/${encodeURIComponent(name)}${rest}`;
