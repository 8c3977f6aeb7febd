// Moving a group to another place of a topic.

import { ask as request, at } from "./api.js";
import { choice, field, h } from "./dom.js";
import { ask, submits, tell } from "./ui.js";
import { clock } from "./words.js";

export function seekForm(group, refresh) {
  const targets = [
    ["earliest", "the earliest message"],
    ["latest", "the latest: skip what is there"],
    ["time", "a time"],
    ["offset", "an offset of one partition"],
  ];
  const form = h(
    "form",
    {},
    h(
      "p",
      { class: "quiet" },
      "What it has done comes again, or what it has not done is skipped. What its members hold is let go.",
    ),
    h(
      "div",
      { class: "grid roomy" },
      field(
        "Topic",
        choice(
          "topic",
          Object.keys(group.lag).map((name) => [name, name]),
        ),
      ),
      field("To", choice("to", targets, "earliest")),
      field(
        "Time",
        h("input", { name: "time", type: "datetime-local", step: 1 }),
        "If to a time, in the time zone of this browser.",
      ),
      field("Partition", h("input", { name: "partition", type: "number", min: 0 }), "Empty: all of them."),
      field("Offset", h("input", { name: "offset", type: "number", min: 0 }), "If to an offset."),
    ),
    h("div", { class: "actions" }, h("button", {}, "Seek …")),
  );
  return submits(form, async (values) => sure(group, seekOf(values), refresh));
}

function seekOf({ topic, to, time, partition, offset }) {
  const body = { topic, ...(partition !== "" && { partition: Number(partition) }) };
  if (to === "time") {
    if (!time) throw new Error("Say to which time.");
    return { ...body, time: new Date(time).toISOString() };
  }
  if (to !== "offset") return { ...body, to };
  if (partition === "" || offset === "") throw new Error("Say which partition, and to which offset of it.");
  return { ...body, to: Number(offset) };
}

function sure(group, body, refresh) {
  const where = [body.topic, body.partition === undefined ? null : `partition ${body.partition}`]
    .filter(Boolean)
    .join(", ");
  ask({
    title: `Move ${group.name}?`,
    body: h("p", {}, `It goes to ${body.to ?? clock(body.time)} in ${where}.`),
    actions: [{ name: "seek", text: "Move it", kind: "danger" }],
    close: "Leave it",
    go: async () => {
      await request("POST", at`groups/${group.name}/seek`, { body });
      tell(`${group.name} was moved.`);
      refresh();
    },
  });
}
