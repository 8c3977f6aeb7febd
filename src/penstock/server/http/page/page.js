// The page: which view the address means, reading every two seconds while somebody looks, and the key.
//
// A view is { title(parts), read(parts, signal, world), draw(world, found, parts) }: `read` asks for what only that view
// needs, `draw` makes elements of it. The lists of topics and groups are read for all of them: rates come from those.

import { Failure, all, get, hasKey, keepKey } from "./api.js";
import * as cluster from "./cluster.js";
import { card, empty, field, h, morph } from "./dom.js";
import * as group from "./group.js";
import * as message from "./message.js";
import { Meter } from "./meter.js";
import * as overview from "./overview.js";
import * as topic from "./topic.js";
import { ask, failed } from "./ui.js";

const EVERY_MS = 2_000;
const VIEWS = { __proto__: null, "": overview, topics: topic, groups: group, messages: message, cluster };
// Asking again will not help.
const NOT_HERE = { 400: "No such page", 403: "Not allowed", 404: "Nothing here" };

const meter = new Meter();
const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
let shown = null;
let timer = null;
let reading = null;
let isAsking = false;
let isNamed = false;

function route() {
  const [name = "", ...parts] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  return { view: VIEWS[name], parts };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function refresh() {
  clearTimeout(timer);
  reading?.abort();
  if (document.hidden) meter.pause();
  if (document.hidden || isAsking) return;
  const since = performance.now();
  const mine = (reading = new AbortController());
  try {
    await look(mine.signal);
    trouble.replaceChildren();
  } catch (error) {
    if (mine.signal.aborted) return;
    explain(error);
  }
  if (!mine.signal.aborted && !isAsking) timer = setTimeout(refresh, pauseAfter(performance.now() - since));
}

/** A broker that is slow to answer is asked less often. */
const pauseAfter = (tookMs) => Math.min(Math.max(EVERY_MS, 10 * tookMs), 60_000);

async function look(signal) {
  const { view, parts } = route();
  if (!view) throw new Failure(404, "page_not_found", "The dashboard has no such page.");
  const [topics, groups] = await Promise.all([all("topics", "topics", signal), all("groups", "groups", signal)]);
  meter.add(topics, groups, performance.now());
  const world = { topics, groups, meter, refresh };
  const found = await view.read(parts, signal, world);
  if (signal.aborted) return;
  if (!isNamed) nameNode(signal);
  draw(view.title(parts), view.draw(world, found, parts));
}

/** Elements that stay keep their focus; another address is another page. */
function draw(title, fresh) {
  const body = h("main", { id: "main", tabindex: "-1" }, fresh);
  if (shown === location.hash) {
    const wasHere = main.contains(document.activeElement);
    morph(main, body);
    // What had the focus is gone, such as the button of a row.
    if (wasHere && !main.contains(document.activeElement)) main.focus({ preventScroll: true });
    return;
  }
  main.replaceChildren(...body.childNodes);
  document.title = `${title} · Penstock`;
  const [before, here] = [pageOf(shown), pageOf(location.hash)];
  // A reader of screens hears where it is; on another tab of the same page, that one has the focus.
  const tab = before === here ? main.querySelector("[aria-current]") : null;
  if (shown !== null) (tab ?? main).focus({ preventScroll: true });
  tab?.scrollIntoView({ block: "nearest", inline: "nearest" });
  if (before !== here) scrollTo(0, 0);
  shown = location.hash;
}

const pageOf = (hash) => (hash ?? "").split("/").slice(0, 3).join("/");

function explain(error) {
  if (error.status === 401) {
    askForKey(error);
  } else if (NOT_HERE[error.status]) {
    trouble.replaceChildren();
    const back = h("a", { href: "#/" }, "Back to the overview");
    draw("Nothing here", card(NOT_HERE[error.status], {}, failed(error), h("p", {}, back)));
  } else {
    if (!(error instanceof Failure)) console.error(error);
    trouble.replaceChildren(
      failed(error),
      h("p", { class: "quiet" }, "What you see may be old. The page goes on asking."),
    );
  }
}

function askForKey(error) {
  isAsking = true;
  const said = hasKey() ? failed(error) : h("p", { class: "quiet" }, "The key stays in this tab, until it is closed.");
  const input = h("input", { name: "key", type: "password", required: true, autocomplete: "off", autofocus: true });
  ask({
    title: "This broker asks for an API key",
    body: [said, field("API key", input, "Whoever runs the broker makes one with: penstock key create")],
    actions: [{ name: "use", text: "Use this key" }],
    close: "Not now",
    go: ({ key }) => {
      keepKey(key.trim());
      isAsking = false;
    },
    onclose: () => {
      document.getElementById("forget").hidden = !hasKey();
      if (!isAsking) {
        refresh();
        return;
      }
      isAsking = false;
      const again = h("button", { class: "primary", onclick: refresh }, "Enter a key");
      main.replaceChildren(card("No key", {}, empty("The broker shows nothing without an API key.", again)));
      shown = null;
    },
  });
}

async function nameNode(signal) {
  try {
    const found = await get("cluster", {}, signal);
    document.getElementById("node").replaceChildren(cluster.named(found));
    // What is wrong with other nodes may change, and is shown on every page.
    isNamed = found.mode !== "cluster";
  } catch {
    // Not important, and asked for again.
  }
}

document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = new FormData(event.target).get("id").trim();
  if (id) location.hash = `#/messages/${encodeURIComponent(id)}`;
});
document.getElementById("forget").addEventListener("click", () => {
  keepKey(null);
  location.reload();
});
document.getElementById("skip").addEventListener("click", (event) => {
  // Its address is not a page.
  event.preventDefault();
  main.focus();
});
document.getElementById("forget").hidden = !hasKey();
addEventListener("hashchange", refresh);
document.addEventListener("visibilitychange", refresh);
refresh();
