// Signing in with the OIDC issuer: authorization code with PKCE (RFC 7636).
//
// The service exchanges the code, because the page's policy lets it connect to the service alone.

import { Refusal, fetched, session, signInWithBearer } from "./api.js";
import { answer, keep } from "./returned.js";
import { canSign } from "./signing.js";
import { visible } from "./text.js";

const SIGN_IN = "/console/sign-in";
const DESCRIPTION_MAX = 300;
const AGAIN = "Sign in again.";

/** The issuer; empty if the console does not offer to sign in with one. */
const issuer = document.querySelector("meta[name=holdfast-issuer]").content;
export const issuerName = issuer && new URL(issuer).host;

/** True if the page was loaded by a redirect from the issuer. */
export const returned = Boolean(answer);

const problem = (detail) => new Refusal(0, { detail }, 0);

const base64url = (bytes) =>
  btoa(String.fromCharCode(...new Uint8Array(bytes))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

/** 256 random bits. */
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

/** Leaves the page for the issuer's. */
export async function leaveForIssuer() {
  if (!canSign) throw problem("Browsers can sign in with an issuer only over HTTPS, or on localhost. Use an API key here.");
  const common = await fetched("GET", SIGN_IN, {});
  const { redirect_uri: home } = common.parameters;
  if (home !== location.origin + location.pathname) {
    throw problem(`The issuer would send you back to ${home}, but you opened ${location.origin}${location.pathname}. Open the console at ${home}.`);
  }
  const started = { state: random(), nonce: random(), verifier: random(), names: common.issuer_names_itself, home, hash: location.hash };
  const url = new URL(common.authorization_endpoint);
  const challenge = base64url(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(started.verifier)));
  const parameters = { ...common.parameters, state: started.state, nonce: started.nonce, code_challenge: challenge };
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  try {
    keep(started);
  } catch {
    throw problem("The browser lets this page store nothing, and a sign-in with an issuer needs that until you are back. Use an API key.");
  }
  location.assign(url);
  await new Promise(() => {}); // until the page is left
}

/** Ends the sign-in that was begun in this tab. */
export async function signInWithIssuer() {
  const { started, state, iss, code, error, error_description: description } = answer;
  if (!started || state !== started.state) throw problem(`This sign-in was not begun in this tab, or was begun anew since then. ${AGAIN}`);
  if (iss === null ? started.names : iss !== issuer) throw problem(`The answer is not from ${issuer}, with which the sign-in was begun. ${AGAIN}`);
  if (error !== null) {
    const why = description ? `: ${visible(description.slice(0, DESCRIPTION_MAX))}` : "";
    throw problem(`${issuerName} has not signed you in (${visible(error.slice(0, DESCRIPTION_MAX))}${why}). ${AGAIN}`);
  }
  const { verifier, nonce, home } = started;
  const body = JSON.stringify({ code, code_verifier: verifier, nonce, redirect_uri: home });
  const { token, sign_out: signOut } = await fetched("POST", SIGN_IN, { "content-type": "application/json" }, body);
  await signInWithBearer(token);
  session.issuerSignOut = signOut || "";
}
