// All topics and groups, and how much goes through.

import { ask as request } from "./api.js";
import { bar, chart } from "./chart.js";
import { card, empty, field, h, table } from "./dom.js";
import { isPartial, total } from "./meter.js";
import { ask, tell } from "./ui.js";
import { count, isLetters, known, rate, size, some } from "./words.js";

export const title = () => "Overview";
export const read = async () => null;

export function draw({ topics, groups, meter, refresh }) {
  return [
    h("h1", {}, "Overview"),
    card("Throughput", {}, chart(meter.points)),
    card(
      "Topics",
      { aside: h("button", { onclick: () => createTopic(refresh) }, "New topic") },
      topics.length ? topicTable(topics, meter) : noTopics(),
    ),
    card("Groups", {}, groups.length ? groupTable(groups, meter) : noGroups(topics)),
  ];
}

export const linkTo = (kind, name, ...more) =>
  h("a", { href: ["#", kind, encodeURIComponent(name), ...more].join("/") }, name);

function topicTable(topics, meter) {
  const held = (topic) => total(topic.partitions.map((part) => part.end_offset - part.start_offset - part.empty));
  return table(
    "Topics",
    [
      {
        name: "Topic",
        cell: (t) => [linkTo("topics", t.name), isLetters(t.name) ? tag("dead letters") : hotTag(meter.hot(t).size)],
      },
      { name: "Partitions", number: true, cell: (t) => count(t.partitions.length + t.unknown.length) },
      { name: "Messages", number: true, cell: (t) => known(count(held(t)), t.unknown.length) },
      {
        name: "Size",
        number: true,
        cell: (t) => known(size(total(t.partitions.map((part) => part.bytes))), t.unknown.length),
      },
      { name: "Scheduled", number: true, cell: (t) => (t.scheduled || t.unknown.length ? known(count(t.scheduled), t.unknown.length) : "–") },
      { name: "Rate", number: true, cell: (t) => rate(meter.topic(t.name)) },
    ],
    topics.toSorted((a, b) => isLetters(a.name) - isLetters(b.name) || a.name.localeCompare(b.name)),
    (t) => t.name,
  );
}

const tag = (text, kind = "tag") => [" ", h("span", { class: kind }, text)];
const hotTag = (hot) => (hot ? tag(some(hot, "hot partition"), "tag hot") : null);

function groupTable(groups, meter) {
  const lagOf = (group) => total(Object.values(group.lag).flat());
  const most = Math.max(...groups.map(lagOf));
  return table(
    "Groups",
    [
      { name: "Group", cell: (g) => linkTo("groups", g.name) },
      { name: "Topics", wide: true, cell: (g) => Object.keys(g.lag).join(", ") || "–" },
      { name: "Members", number: true, cell: (g) => count(Object.keys(g.members).length) },
      { name: "Done", number: true, cell: (g) => rate(meter.group(g.name)) },
      { name: "Lag", number: true, cell: (g) => known(count(lagOf(g)), isPartial(g)) },
      { name: "Compared", cell: (g) => bar(lagOf(g), most) },
    ],
    groups,
    (g) => g.name,
  );
}

const noTopics = () =>
  empty(
    "There are no topics yet.",
    "Make one with “New topic”, or with ",
    h("code", {}, "penstock topic create orders"),
    ".",
  );

const noGroups = (topics) =>
  empty(
    "Nobody has consumed anything yet.",
    "A group is made when its first consumer asks: ",
    h("code", {}, `penstock consume ${topics[0]?.name ?? "orders"} --group billing`),
    ".",
  );

function createTopic(refresh) {
  ask({
    title: "New topic",
    body: [
      field("Name", h("input", { name: "name", required: true, autocomplete: "off", spellcheck: "false" })),
      field(
        "Partitions",
        h("input", { name: "partitions", type: "number", min: 1, value: 6, required: true }),
        "There can be more later, never fewer.",
      ),
    ],
    actions: [{ name: "create", text: "Make it" }],
    close: "Cancel",
    go: async ({ name, partitions }) => {
      await request("POST", "topics", { body: { name, partitions: Number(partitions) } });
      tell(`Topic ${name} is there.`);
      refresh();
    },
  });
}
