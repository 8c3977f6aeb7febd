// One message: what it is, what happened to it, and why each group has it or has not.

import { at, get } from "./api.js";
import { card, empty, facts, h, table } from "./dom.js";
import { between, bytesIn, clock, fromNow, keyIn, lasting } from "./words.js";

const WHY_MAX = 20;
const BAD = new Set(["NACKED", "LEASE_EXPIRED", "EXHAUSTED", "DEAD_LETTERED", "EXPIRED", "CANCELLED"]);

export const title = ([id]) => id;

export async function read([id], signal, { groups }) {
  const [message, { steps }] = await Promise.all([
    get(at`messages/${id}`, { as: "text" }, signal),
    get(at`messages/${id}/trace`, {}, signal),
  ]);
  const concerned = groups.filter((group) => message.topic in group.lag).map((group) => group.name);
  const whys = await Promise.all(
    concerned
      .slice(0, WHY_MAX)
      .map(async (group) => ({ group, ...(await get(at`messages/${id}/why`, { group }, signal)) })),
  );
  return { message, steps, whys, left: concerned.length - whys.length };
}

export function draw(world, { message, steps, whys, left }) {
  return [
    h(
      "p",
      { class: "crumbs" },
      h("a", { href: "#/" }, "Overview"),
      " / ",
      h("a", { href: `#/topics/${encodeURIComponent(message.topic)}` }, message.topic),
      " / message",
    ),
    h("h1", {}, message.id),
    facts([
      ["Key", keyIn(message)],
      ["Priority", message.priority],
      ["Published", clock(message.append_time ?? message.timestamp)],
      ["Producer's time", clock(message.timestamp)],
      ...(message.deliver_at ? [["Due", `${clock(message.deliver_at)}, ${fromNow(message.deliver_at)}`]] : []),
      ...(message.expires_at ? [["Expires", `${clock(message.expires_at)}, ${fromNow(message.expires_at)}`]] : []),
    ]),
    h(
      "div",
      { class: "columns" },
      card("Value", {}, content(message)),
      card("Why", whyNote(left), whys.length ? whyTable(whys) : noGroups(message)),
    ),
    card("Trace", {}, timeline(steps)),
  ];
}

/** The value and the headers. */
export function content(message) {
  const headers = message.headers_base64 ?? Object.entries(message.headers);
  return h(
    "div",
    { class: "content" },
    message.text === undefined
      ? raw(message.value)
      : h("pre", { tabindex: "0", "aria-label": "Value" }, pretty(message.text) || " "),
    headers.length
      ? table(
          "Headers",
          [
            { name: "Header", cell: ([name]) => name },
            {
              name: message.headers_base64 ? "Value, in base64" : "Value",
              wide: true,
              cell: ([, value]) => h("code", {}, value),
            },
          ],
          headers,
          ([name, value]) => `${name}=${value}`,
        )
      : h("p", { class: "quiet" }, "It has no headers."),
  );
}

const raw = (value) =>
  value === null
    ? h("p", {}, "It has no value: a tombstone.")
    : [
        h("p", { class: "quiet" }, `${bytesIn(value)} that are not text, in base64:`),
        h("pre", { tabindex: "0", "aria-label": "Value" }, value),
      ];

/** JSON with lines and spaces, and otherwise as it was written: parsing would change numbers. */
function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[[{]\s*[\]}]|[[\]{},:]|[^\s[\]{},:"]+/g) ?? [];
  return tokens
    .map((token) => {
      if (token === "{" || token === "[") {
        depth += 1;
        return token + line();
      }
      if (token === "}" || token === "]") {
        depth -= 1;
        return line() + token;
      }
      if (token === ",") return token + line();
      return token === ":" ? ": " : token;
    })
    .join("");
}

const whyNote = (left) => ({ note: left > 0 ? `Of the first ${WHY_MAX} groups; ${left} more are not asked.` : null });

const whyTable = (whys) =>
  table(
    "Why each group has it or has not",
    [
      { name: "Group", cell: (w) => h("a", { href: `#/groups/${encodeURIComponent(w.group)}` }, w.group) },
      { name: "State", cell: (w) => h("span", { class: "tag" }, w.code.replaceAll("_", " ")) },
      { name: "In words", wide: true, cell: (w) => w.answer },
    ],
    whys,
    (w) => w.group,
  );

const noGroups = (message) =>
  empty(
    "No group consumes this topic.",
    "Start one: ",
    h("code", {}, `penstock consume ${message.topic} --group billing`),
    ".",
  );

function timeline(steps) {
  return h(
    "ol",
    { class: "timeline" },
    steps.map((step, i) =>
      h(
        "li",
        { key: `${i}`, class: BAD.has(step.what) ? "bad" : step.what === "ACKNOWLEDGED" ? "good" : null },
        h(
          "time",
          { datetime: step.time },
          clock(step.time),
          h("small", {}, i ? `+${lasting(between(steps[0].time, step.time))}` : ""),
        ),
        h(
          "div",
          {},
          h("b", {}, named(step.what)),
          step.group ? [" ", h("span", { class: "tag" }, step.group)] : null,
          h("p", { class: "quiet" }, said(step)),
        ),
      ),
    ),
  );
}

const named = (what) => what[0] + what.slice(1).toLowerCase().replaceAll("_", " ");

const UNTIL = {
  DELIVERED: "to answer until",
  REDELIVERED: "to answer until",
  NACKED: "to come again from",
  LEASE_EXPIRED: "to come again from",
  REDRIVEN: "to come again from",
  RETAINED: "at least until",
  SCHEDULED: "due",
};

function said(step) {
  return [
    step.consumer && `by ${step.consumer}`,
    step.attempt && `attempt ${step.attempt}`,
    step.reason && (step.what === "REDELIVERED" ? `after “${step.reason}”` : `“${step.reason}”`),
    step.until && `${UNTIL[step.what] ?? "until"} ${clock(step.until)}`,
    step.place && `as ${step.place}`,
  ]
    .filter(Boolean)
    .join(" · ");
}
