// The end of a redirect from the OIDC issuer: taken out of the address before any other script of the page runs.
//
// The tab was left for the issuer, so what belongs to the sign-in was in the session storage: the verifier, the state
// and the nonce.  It is removed here, whenever the page is loaded.

const KEY = "holdfast.sign-in";

/** Keeps the values of a sign-in while the tab is at the issuer. */
export const keep = (started) => sessionStorage.setItem(KEY, JSON.stringify(started));

function removed() {
  try {
    const text = sessionStorage.getItem(KEY);
    sessionStorage.removeItem(KEY);
    return text && JSON.parse(text);
  } catch {
    return null; // the browser has no storage, or something else is in there: no sign-in was begun
  }
}

function answered() {
  const started = removed();
  const query = new URLSearchParams(location.search);
  if (!location.search) return null;
  history.replaceState(null, "", location.pathname + (started?.hash || location.hash));
  const one = (name) => (query.getAll(name).length === 1 ? query.get(name) : null);
  const answer = { started };
  for (const name of ["state", "iss", "code", "error", "error_description"]) answer[name] = one(name);
  return answer.code || answer.error ? answer : null;
}

/** The issuer's answer, and the sign-in that was begun in this tab; null if the page is not loaded by a redirect. */
export const answer = answered();

// the browser shows the page as it was left when someone goes back from the issuer
addEventListener("pageshow", (event) => {
  if (event.persisted && removed()) location.reload();
});
