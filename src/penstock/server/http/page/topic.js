// One topic: a tab for each question, so that only what is looked at is asked for.

import { Failure, at, get, orRefused } from "./api.js";
import { bar } from "./chart.js";
import { card, empty, facts, h, table } from "./dom.js";
import * as later from "./later.js";
import * as letters from "./letters.js";
import * as messages from "./messages.js";
import { total } from "./meter.js";
import * as publish from "./publish.js";
import { failed } from "./ui.js";
import { clock, count, isLetters, known, rate, size, some } from "./words.js";

const partitions = { read: async () => null, draw: drawPartitions };
const TABS = {
  __proto__: null,
  "": { text: "Partitions", ...partitions },
  messages: { text: "Latest messages", ...messages },
  scheduled: { text: "Scheduled", ...later },
  "dead-letters": { text: "Dead letters", ...letters },
  publish: { text: "Publish", ...publish },
};

export const title = ([name]) => name;

/** Nobody publishes to a topic of dead letters, nor gives them up again. */
const tabsOf = (name) => Object.entries(TABS).filter(([tab]) => !isLetters(name) || tab === "" || tab === "messages");

export async function read([name, tab = ""], signal, world) {
  const topic = world.topics.find((one) => one.name === name) ?? (await get(at`topics/${name}`, {}, signal));
  return { topic, more: await orRefused((TABS[tab] ?? partitions).read(topic, signal, world)) };
}

export function draw(world, { topic, more }, [name, tab = ""]) {
  const held = total(topic.partitions.map((part) => part.end_offset - part.start_offset - part.empty));
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Overview"), " / topic"),
    h("h1", {}, name),
    facts([
      ["Messages", known(count(held), topic.unknown.length)],
      ["Size", known(size(total(topic.partitions.map((part) => part.bytes))), topic.unknown.length)],
      ["Rate", rate(world.meter.topic(name))],
      ["Scheduled", known(count(topic.scheduled), topic.unknown.length)],
      ["Created", clock(topic.created_at).split(".")[0]],
    ]),
    h(
      "nav",
      { class: "tabs", "aria-label": `About ${name}` },
      tabsOf(name).map(([key, { text }]) =>
        h(
          "a",
          {
            href: `#/topics/${encodeURIComponent(name)}${key && `/${key}`}`,
            "aria-current": key === tab ? "page" : null,
          },
          text,
        ),
      ),
    ),
    more instanceof Failure
      ? card("Not allowed", {}, failed(more))
      : (TABS[tab] ?? partitions).draw(world, topic, more),
  ];
}

function drawPartitions({ meter }, topic) {
  const hot = meter.hot(topic);
  const most = Math.max(...topic.partitions.map((part) => meter.partition(topic.name, part.number) ?? 0));
  const notes = [
    hot.size ? "A hot partition gets at least three times the average: a few keys have most of the messages." : "",
    topic.unknown.length ? `Nobody serves ${some(topic.unknown.length, "partition")} (${topic.unknown.join(", ")}).` : "",
  ];
  const note = notes.filter(Boolean).join(" ") || null;
  const rows = table(
    `Partitions of ${topic.name}`,
    [
      {
        name: "Partition",
        cell: (p) => [`${p.number}`, hot.has(p.number) ? [" ", h("span", { class: "tag hot" }, "hot")] : null],
      },
      { name: "First offset", number: true, cell: (p) => count(p.start_offset) },
      { name: "Next offset", number: true, cell: (p) => count(p.end_offset) },
      { name: "Messages", number: true, cell: (p) => count(p.end_offset - p.start_offset - p.empty) },
      { name: "Size", number: true, cell: (p) => size(p.bytes) },
      { name: "Rate", number: true, cell: (p) => rate(meter.partition(topic.name, p.number)) },
      { name: "Compared", cell: (p) => bar(meter.partition(topic.name, p.number) ?? 0, most) },
    ],
    topic.partitions,
    (p) => p.number,
  );
  return [card("Partitions", { note }, rows), card("Settings", {}, settings(topic.settings))];
}

export function settings(given) {
  const pairs = Object.entries(given).map(([name, value]) => [name, h("code", {}, shown(value))]);
  return pairs.length ? facts(pairs) : empty("All settings are as the broker has them by default.");
}

function shown(value) {
  if (value === null) return "none";
  if (typeof value !== "object") return String(value);
  return Object.entries(value)
    .map(([name, one]) => `${name} ${one ?? "none"}`)
    .join(", ");
}
