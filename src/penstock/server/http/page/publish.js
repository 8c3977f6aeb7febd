// Publishing one message by hand.

import { ask as request, at } from "./api.js";
import { card, choice, field, h } from "./dom.js";
import { submits, tell } from "./ui.js";

export const read = async () => null;

export function draw({ refresh }, topic) {
  return card("Publish a message", {}, h("div", { "data-own": true }, form(topic, refresh)));
}

function form(topic, refresh) {
  const kinds = [
    ["text", "Text"],
    ["json", "JSON, checked"],
    ["base64", "Bytes, in base64"],
    ["null", "Nothing: a tombstone"],
  ];
  const lanes = ["normal", "high", "low"].map((name) => [name, name]);
  const numbers = [["", "by its key"], ...topic.partitions.map((part) => [String(part.number), String(part.number)])];
  const plain = { autocomplete: "off", spellcheck: "false" };
  const made = h(
    "form",
    { class: "publish" },
    field("Value", h("textarea", { name: "value", rows: 6, spellcheck: "false" })),
    h(
      "div",
      { class: "grid" },
      field("The value is", choice("kind", kinds, "text")),
      field("Key", h("input", { name: "key", ...plain }), "Messages of one key stay in order."),
      field("Priority", choice("priority", lanes, "normal")),
      field("Delay", h("input", { name: "delay", ...plain }), "Such as 30s, 10m or 7d."),
      field("Expires after", h("input", { name: "ttl", ...plain }), "Such as 1h."),
      field("Partition", choice("partition", numbers, "")),
    ),
    field("Headers", h("textarea", { name: "headers", rows: 2, spellcheck: "false" }), "One a line: name: value"),
    h("div", { class: "actions" }, h("button", { class: "primary" }, "Publish")),
  );
  return submits(made, async (values) => {
    const { id } = await request("POST", at`topics/${topic.name}/publish`, { body: messageOf(values) });
    tell(`Published ${id}: it is on disk.`);
    refresh();
    return h("p", { class: "found" }, "Published ", h("a", { href: `#/messages/${encodeURIComponent(id)}` }, id), ".");
  });
}

function messageOf({ value, kind, key, priority, delay, ttl, partition, headers }) {
  const message = { priority, ...contentOf(kind, value) };
  if (key) message.key = key;
  if (delay.trim()) message.delay = delay.trim();
  if (ttl.trim()) message.ttl = ttl.trim();
  if (partition) message.partition = Number(partition);
  if (headers.trim()) message.headers = Object.fromEntries(headers.trim().split("\n").map(headerOf));
  return message;
}

function contentOf(kind, value) {
  if (kind === "null") return { value: null };
  if (kind === "base64") return { value: value.trim(), encoding: "base64" };
  if (kind === "json") {
    try {
      JSON.parse(value);
    } catch (error) {
      throw new Error(`The value is not JSON: ${error.message}`);
    }
  }
  // JSON too goes as it was written: large numbers would not survive being read here.
  return { text: value };
}

function headerOf(line) {
  const [name, ...rest] = line.split(":");
  if (!rest.length || !name.trim()) throw new Error(`A header is a name, a colon and a value, not: ${line}`);
  return [name.trim(), rest.join(":").trim()];
}
