// The public HTTP API, and the key for it. Addresses are relative, so that a proxy may put the page under a path.

const KEY = "penstock.key";
let kept = null;
try {
  kept = sessionStorage.getItem(KEY);
} catch {
  // Storage is switched off: the key lasts as long as the page.
}

export const hasKey = () => kept !== null;

export function keepKey(key) {
  kept = key;
  try {
    if (key === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, key);
  } catch {
    // As above.
  }
}

/** What the API says is wrong: `code` never changes, the message is for people. */
export class Failure extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** A path with its parts escaped: at`topics/${name}`. */
export const at = (texts, ...parts) =>
  texts.reduce((path, text, i) => path + text + (i < parts.length ? encodeURIComponent(parts[i]) : ""), "");

export async function ask(method, path, { query = {}, body, signal } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const url = `v1/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
  const headers = kept === null ? {} : { authorization: `Bearer ${kept}` };
  let reply, text;
  try {
    reply = await fetch(url, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
    text = await reply.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "no_answer", "The broker does not answer. Is it running?");
  }
  const found = parsed(text);
  if (reply.ok) return found;
  throw new Failure(reply.status, found?.code ?? `http_${reply.status}`, sentence(found?.message ?? reply.statusText));
}

export const get = (path, query, signal) => ask("GET", path, { query, signal });

/** All pages of a listing, whose items are in `field` of each page. */
export async function all(path, field, signal) {
  const items = [];
  let after = "";
  do {
    const page = await get(path, { after }, signal);
    items.push(...page[field]);
    after = page.next;
  } while (after);
  return items;
}

/** What the key may not ask for is shown as refused; the rest of the page is there. */
export const orRefused = (asking) =>
  asking.catch((error) => {
    if (error.status === 403) return error;
    throw error;
  });

function parsed(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".") : "");
