// Signs a request with AWS Signature Version 4: the secret of an access key signs, and is never sent.

const encoder = new TextEncoder();

const hex = (bytes) => Array.from(new Uint8Array(bytes), (one) => one.toString(16).padStart(2, "0")).join("");

const digest = async (text) => hex(await crypto.subtle.digest("SHA-256", encoder.encode(text)));

async function hmac(key, text) {
  const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return crypto.subtle.sign("HMAC", imported, encoder.encode(text));
}

/** Browsers have no cryptography for pages that others could have changed on their way: without TLS. */
export const canSign = Boolean(globalThis.isSecureContext && globalThis.crypto?.subtle);

/** Headers of a signed request to this host, without a query string. */
export async function signedHeaders(method, path, body, key, region) {
  const time = new Date().toISOString().replace(/[-:]|\.\d+/g, "");
  const scope = `${time.slice(0, 8)}/${region}/sqs/aws4_request`;
  const bodyDigest = await digest(body);
  const headers = { host: location.host, "x-amz-content-sha256": bodyDigest, "x-amz-date": time };
  const names = Object.keys(headers).sort();
  const lines = names.map((name) => `${name}:${headers[name]}`);
  const canonical = [method, path, "", ...lines, "", names.join(";"), bodyDigest].join("\n");
  const text = ["AWS4-HMAC-SHA256", time, scope, await digest(canonical)].join("\n");
  let signing = encoder.encode(`AWS4${key.secret}`);
  for (const part of scope.split("/")) signing = await hmac(signing, part);
  const signature = hex(await hmac(signing, text));
  delete headers.host; // the browser sends it
  headers.authorization =
    `AWS4-HMAC-SHA256 Credential=${key.id}/${scope}, SignedHeaders=${names.join(";")}, Signature=${signature}`;
  return headers;
}
