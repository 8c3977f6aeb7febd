// Dead letters: what was given up and why, putting it back, and putting it away.

import { ask as request, at, get } from "./api.js";
import { card, empty, facts, field, h, table } from "./dom.js";
import { content } from "./message.js";
import { ask, tell } from "./ui.js";
import { between, brief, clock, count, keyIn, lasting, some } from "./words.js";

const SHOWN = 100;

export async function read(topic, signal) {
  const query = { limit: SHOWN, as: "text" };
  const { dead_letters: found } = await get(at`topics/${topic.name}/dead-letters`, query, signal);
  return found;
}

export function draw({ refresh }, topic, letters) {
  const aside = letters.length ? h("button", { onclick: () => redrive(topic, null, refresh) }, "Redrive …") : null;
  const note = letters.length === SHOWN ? `The first ${SHOWN}.` : null;
  return card("Dead letters", { aside, note }, letters.length ? rows(topic, letters, refresh) : none());
}

const none = () =>
  empty(
    "No group has given up a message of this topic.",
    "One that fails more often than its group's max_retries, or is rejected, comes here with every attempt.",
  );

const rows = (topic, letters, refresh) =>
  table(
    `Dead letters of ${topic.name}`,
    [
      { name: "Message", cell: (l) => h("a", { href: `#/messages/${encodeURIComponent(l.original)}` }, l.original) },
      { name: "Group", cell: (l) => l.group },
      { name: "Given up", cell: (l) => h("time", { datetime: l.died_at }, clock(l.died_at)) },
      { name: "Attempts", number: true, cell: (l) => count(l.attempts) },
      { name: "Reason", wide: true, cell: (l) => l.reason || "–" },
      { name: "Value", wide: true, cell: (l) => h("code", {}, brief(l.message, 60)) },
      {
        name: "",
        cell: (l) =>
          h(
            "div",
            { class: "buttons" },
            h("button", { onclick: () => inspect(l), "aria-label": `Inspect ${l.original}` }, "Inspect"),
            h(
              "button",
              { onclick: () => redrive(topic, l, refresh), "aria-label": `Redrive ${l.original}` },
              "Redrive",
            ),
            h(
              "button",
              { class: "danger", onclick: () => discard(topic, l, refresh), "aria-label": `Discard ${l.original}` },
              "Discard",
            ),
          ),
      },
    ],
    letters,
    (l) => l.id,
  );

function inspect(letter) {
  const attempts = table(
    "Attempts",
    [
      { name: "Attempt", cell: (f) => `${f.attempt}` },
      { name: "Leased", cell: (f) => clock(f.leased_at) },
      { name: "Held for", number: true, cell: (f) => lasting(between(f.leased_at, f.failed_at)) },
      { name: "Consumer", cell: (f) => f.consumer },
      { name: "Reason", wide: true, cell: (f) => f.reason || "–" },
    ],
    letter.failures,
    (f) => f.attempt,
  );
  ask({
    title: `Dead letter of ${letter.original}`,
    body: [
      facts([
        ["Letter", letter.id],
        ["Group", letter.group],
        ["Reason", letter.reason || "–"],
        ["Key", keyIn(letter.message)],
        ["Published", clock(letter.published_at)],
        ["Given up", `${clock(letter.died_at)}${letter.round > 1 ? `, for the ${letter.round}th time` : ""}`],
      ]),
      attempts,
      content(letter.message),
    ],
    broad: true,
  });
}

/** One letter, or those that fit. */
function redrive(topic, letter, refresh) {
  const filters = [
    field("Of the group", h("input", { name: "group", autocomplete: "off" }), "Empty: of all groups."),
    field("Reason contains", h("input", { name: "reason", autocomplete: "off" })),
    field("Key", h("input", { name: "key", autocomplete: "off" })),
    field(
      "No more a second than",
      h("input", { name: "rate", type: "number", min: 0.01, step: "any" }),
      "Empty: all at once.",
    ),
  ];
  ask({
    title: letter ? `Redrive ${letter.original}` : `Redrive dead letters of ${topic.name}`,
    body: [
      h(
        "p",
        { class: "quiet" },
        "They go back to the groups that gave them up. A dry run tells which, and does nothing.",
      ),
      letter ? [] : h("div", { class: "grid" }, filters),
    ],
    actions: [
      { name: "dry", text: "Dry run", kind: null },
      { name: "redrive", text: "Redrive" },
    ],
    go: async ({ action, group, reason, key, rate }) => {
      const where = letter ? { ids: [letter.id] } : { ...(reason && { reason }), ...(key && { key }) };
      const body = { where, dry_run: action === "dry" };
      if (letter || group) body.group = letter?.group ?? group;
      if (rate) body.rate = Number(rate);
      const found = await request("POST", at`topics/${topic.name}/dead-letters/redrive`, { body });
      if (action === "dry") return h("p", { class: "found" }, told(found, "would go"));
      tell(told(found, "went"));
      return refresh();
    },
  });
}

function told({ in_place, copied, refused, already }, verb) {
  const parts = [`${some(in_place.length + copied.length, "dead letter")} ${verb} back`];
  if (copied.length) parts.push(`${count(copied.length)} of them as a copy, as the message is gone`);
  if (refused.length) parts.push(`${count(refused.length)} refused`);
  if (already.length) parts.push(`${count(already.length)} redriven already`);
  return `${parts.join("; ")}.`;
}

function discard(topic, letter, refresh) {
  ask({
    title: `Discard the dead letter of ${letter.original}?`,
    body: h("p", {}, "It is not listed any more, nor redriven. The message stays in the log."),
    actions: [{ name: "discard", text: "Discard it", kind: "danger" }],
    close: "Leave it",
    go: async () => {
      const body = { group: letter.group, where: { ids: [letter.id] } };
      await request("POST", at`topics/${topic.name}/dead-letters/discard`, { body });
      tell(`The dead letter of ${letter.original} was discarded.`);
      refresh();
    },
  });
}
