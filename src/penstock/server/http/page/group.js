// One group: how far behind it is, who is in it, and which keys wait.

import { ask as request, at, get } from "./api.js";
import { bar } from "./chart.js";
import { card, empty, facts, h, table } from "./dom.js";
import { isPartial, total } from "./meter.js";
import { seekForm } from "./seek.js";
import { settings } from "./topic.js";
import { ask, tell } from "./ui.js";
import { clock, count, fromNow, keyIn, known, rate, some } from "./words.js";

export const title = ([name]) => name;

export async function read([name], signal, world) {
  const [group, { keys, unknown, next }] = await Promise.all([
    world.groups.find((one) => one.name === name) ?? get(at`groups/${name}`, {}, signal),
    get(at`groups/${name}/parked-keys`, {}, signal),
  ]);
  return { group, keys, unknown, next };
}

export function draw({ meter, refresh }, { group, keys, unknown, next }) {
  const lacking = Object.entries(unknown);
  const rows = Object.entries(group.lag).flatMap(([topic, lags]) =>
    lags.map((lag, partition) => ({ topic, partition, lag })),
  );
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Overview"), " / group"),
    h("h1", {}, group.name),
    facts([
      ["Lag", known(count(total(rows.map((row) => row.lag))), isPartial(group))],
      ["Done", rate(meter.group(group.name))],
      ["Members", count(Object.keys(group.members).length)],
      ["Parked keys", known(count(keys.length), lacking.length || next)],
      ["Created", clock(group.created_at).split(".")[0]],
    ]),
    card(
      "Lag",
      {},
      rows.length ? lagTable(group, rows) : empty("The group has not asked for any topic yet.", consume(group)),
    ),
    card(
      "Members",
      {},
      Object.keys(group.members).length ? memberTable(group) : empty("No consumer is here.", consume(group)),
    ),
    card(
      "Parked keys",
      { note: lacking.length ? `${lacking.map(notLed).join(" ")} What is parked there is not known.` : null },
      keys.length ? parkedTable(group, keys, refresh) : lacking.length ? null : noParked(group),
    ),
    card("Settings", {}, settings(group.settings)),
    rows.length ? card("Seek", {}, h("div", { "data-own": true }, seekForm(group, refresh))) : null,
  ];
}

const notLed = ([topic, numbers]) =>
  `Nobody serves ${some(numbers.length, "partition")} (${numbers.join(", ")}) of ${topic}.`;

const consume = (group) => [
  "Start one: ",
  h("code", {}, `penstock consume ${Object.keys(group.lag)[0] ?? "orders"} --group ${group.name}`),
  ".",
];

function lagTable(group, rows) {
  const most = Math.max(...rows.map((row) => row.lag));
  const owners = (row) =>
    Object.entries(group.members)
      .filter(([, parts]) => parts.some((part) => part.topic === row.topic && part.partition === row.partition))
      .map(([name]) => name);
  return table(
    `Lag of ${group.name}`,
    [
      { name: "Topic", cell: (r) => h("a", { href: `#/topics/${encodeURIComponent(r.topic)}` }, r.topic) },
      { name: "Partition", number: true, cell: (r) => String(r.partition) },
      { name: "Lag", number: true, cell: (r) => (r.lag === null ? "?" : count(r.lag)) },
      { name: "Compared", cell: (r) => (r.lag === null ? "nobody serves it" : bar(r.lag, most)) },
      { name: "Members", wide: true, cell: (r) => owners(r).join(", ") || "–" },
    ],
    rows,
    (r) => `${r.topic}:${r.partition}`,
  );
}

const memberTable = (group) =>
  table(
    `Members of ${group.name}`,
    [
      { name: "Member", cell: ([name]) => name },
      { name: "Partitions", number: true, cell: ([, parts]) => count(parts.length) },
      {
        name: "Which",
        wide: true,
        cell: ([, parts]) => parts.map((part) => `${part.topic}:${part.partition}`).join(", ") || "–",
      },
    ],
    Object.entries(group.members),
    ([name]) => name,
  );

const noParked = (group) =>
  (group.settings.ordering ?? "none") === "none"
    ? empty("No keys are parked.", "This group keeps no order, so no message has to wait for another.")
    : empty(
        "No keys are parked.",
        "A key is parked when a message of it is given up, so that later ones do not overtake it.",
      );

const parkedTable = (group, keys, refresh) =>
  table(
    `Parked keys of ${group.name}`,
    [
      { name: "Key", cell: (k) => nameOf(k) },
      { name: "Given up", cell: (k) => h("a", { href: `#/messages/${encodeURIComponent(k.message)}` }, k.message) },
      { name: "Since", cell: (k) => h("time", { datetime: k.since }, fromNow(k.since)) },
      { name: "Reason", wide: true, cell: (k) => k.reason || "–" },
      {
        name: "",
        cell: (k) =>
          h(
            "div",
            { class: "buttons" },
            h("button", { onclick: () => release(group, k, refresh), "aria-label": `Release ${nameOf(k)}` }, "Release"),
          ),
      },
    ],
    keys,
    (k) => `${k.topic}:${k.partition}:${keyIn(k)}`,
  );

const isWhole = (parked) => parked.key === null && parked.key_base64 === undefined;
const nameOf = (parked) => (isWhole(parked) ? `all of partition ${parked.partition}` : keyIn(parked));

function release(group, parked, refresh) {
  ask({
    title: `Release ${nameOf(parked)}?`,
    body: h("p", {}, `The group goes on with what comes after ${parked.message}, which stays a dead letter.`),
    actions: [{ name: "release", text: "Release it" }],
    close: "Leave it",
    go: async () => {
      const { topic, partition, key, key_base64 } = parked;
      const body = { topic, partition, ...(key !== null && { key }), ...(key_base64 !== undefined && { key_base64 }) };
      await request("POST", at`groups/${group.name}/parked-keys/release`, { body });
      tell(`${nameOf(parked)} was released.`);
      refresh();
    },
  });
}
