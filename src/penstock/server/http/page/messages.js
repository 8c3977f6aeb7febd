// The latest messages of a topic. The API reads a partition forwards, so the last ones of each are asked for.

import { at, get } from "./api.js";
import { card, choice, empty, h, table } from "./dom.js";
import { brief, clock, isLetters, keyIn } from "./words.js";

const SHOWN = 25;
const PARTITIONS_MAX = 8;

// What was read of each partition; it is the same until the partition has grown.
const known = new Map();
let chosen = { topic: null, partition: "" };

export async function read(topic, signal, { meter }) {
  if (chosen.topic !== topic.name) chosen = { topic: topic.name, partition: "" };
  const held = topic.partitions.filter((part) => part.end_offset > part.start_offset);
  const busy = (part) => meter.partition(topic.name, part.number) ?? 0;
  const looked =
    chosen.partition === ""
      ? held.toSorted((a, b) => busy(b) - busy(a)).slice(0, PARTITIONS_MAX)
      : held.filter((part) => part.number === Number(chosen.partition));
  const found = await Promise.all(looked.map((part) => last(topic, part, signal)));
  return {
    messages: found.flat().sort(newest).slice(0, SHOWN),
    isPart: chosen.partition === "" && held.length > looked.length,
  };
}

const newest = (a, b) => b.append_time.localeCompare(a.append_time) || a.partition - b.partition || b.offset - a.offset;

async function last(topic, part, signal) {
  const name = `${topic.name} ${topic.created_at} ${part.number}`;
  if (known.get(name)?.end !== part.end_offset) {
    const query = {
      partition: part.number,
      offset: Math.max(part.start_offset, part.end_offset - SHOWN),
      limit: SHOWN,
      as: "text",
    };
    const { messages } = await get(at`topics/${topic.name}/messages`, query, signal);
    if (known.size > 200) known.clear();
    known.set(name, { end: part.end_offset, messages });
  }
  return known.get(name).messages;
}

export function draw({ refresh }, topic, { messages, isPart }) {
  const options = [
    ["", "all partitions"],
    ...topic.partitions.map((part) => [String(part.number), `partition ${part.number}`]),
  ];
  const onchange = (event) => {
    chosen.partition = event.target.value;
    refresh();
  };
  const aside = h(
    "label",
    {},
    h("span", { class: "hidden" }, "Of which partition"),
    choice("partition", options, chosen.partition, { onchange }),
  );
  const note = isPart ? `Of the ${PARTITIONS_MAX} busiest partitions; choose one to see the others.` : null;
  return card("Latest messages", { aside, note }, messages.length ? rows(topic, messages) : none(topic));
}

const rows = (topic, messages) =>
  table(
    `Latest messages of ${topic.name}`,
    [
      { name: "Message", cell: (m) => h("a", { href: `#/messages/${encodeURIComponent(m.id)}` }, m.id) },
      { name: "Published", cell: (m) => h("time", { datetime: m.append_time }, clock(m.append_time)) },
      { name: "Key", cell: keyIn },
      { name: "Value", wide: true, cell: (m) => h("code", {}, brief(m)) },
      { name: "Notes", cell: (m) => notes(m).map((note) => h("span", { class: "tag" }, note)) },
    ],
    messages,
    (m) => m.id,
  );

const notes = (message) => [
  ...(message.priority === "normal" ? [] : [`${message.priority} priority`]),
  ...(message.deliver_at ? ["delayed"] : []),
  ...(message.expires_at ? ["expires"] : []),
];

const none = (topic) =>
  isLetters(topic.name)
    ? empty("There are no messages here.", "Messages that a group gives up come here.")
    : empty(
        "There are no messages here.",
        h("a", { href: `#/topics/${encodeURIComponent(topic.name)}/publish` }, "Publish one"),
        ".",
      );
