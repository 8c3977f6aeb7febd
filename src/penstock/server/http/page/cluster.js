// The nodes of a cluster: who is there, who leads what, and which partitions lack a copy.

import { get } from "./api.js";
import { card, empty, facts, h, table } from "./dom.js";
import { linkTo } from "./overview.js";
import { count, some } from "./words.js";

export const title = () => "Cluster";

export async function read(parts, signal) {
  const [cluster, { partitions }] = await Promise.all([
    get("cluster", {}, signal),
    get("cluster/partitions", {}, signal),
  ]);
  return { cluster, partitions };
}

export function draw(world, { cluster, partitions }) {
  const lacking = partitions.filter(lacks);
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Overview"), " / cluster"),
    h("h1", {}, "Cluster"),
    facts([
      ["Nodes", count(cluster.nodes.filter((node) => node.is_alive).length)],
      ["Controller", cluster.controller ?? "none"],
      ["Partitions", count(partitions.length)],
      ["Under-replicated", count(cluster.under_replicated)],
      ["Take no messages", count(cluster.under_min_isr)],
      ["Without a leader", count(cluster.without_leader)],
    ]),
    card("Nodes", {}, nodeTable(cluster)),
    card(
      "Under-replicated partitions",
      { note: lacking.length ? "A copy of each of these is away, or behind." : null },
      lacking.length ? partitionTable("Under-replicated partitions", lacking) : empty("All copies are in sync."),
    ),
    card("Leaders", {}, partitions.length ? partitionTable("Leaders", partitions) : empty("There are no topics yet.")),
  ];
}

const lacks = (part) => part.leader === null || part.replicas.some((node) => !part.in_sync.includes(node));
const tag = (text, kind = "tag") => [" ", h("span", { class: kind }, text)];

function nodeTable(cluster) {
  const notes = (node) => [
    node.is_alive ? null : tag("away", "tag hot"),
    node.name === cluster.controller ? tag("controller") : null,
    node.name === cluster.node ? tag("this one") : null,
  ];
  return table(
    "Nodes",
    [
      { name: "Node", cell: (node) => [node.name, notes(node)] },
      { name: "Leads", number: true, cell: (node) => count(node.leads) },
      { name: "Copies", number: true, cell: (node) => count(node.replicas) },
      { name: "Native", wide: true, cell: (node) => node.native ?? "–" },
      { name: "HTTP", wide: true, cell: (node) => node.http ?? "–" },
      { name: "Rack", cell: (node) => node.rack ?? "–" },
      { name: "Version", cell: (node) => node.version ?? "–" },
    ],
    cluster.nodes,
    (node) => node.name,
  );
}

function partitionTable(name, partitions) {
  return table(
    name,
    [
      { name: "Topic", cell: (part) => linkTo("topics", part.topic) },
      { name: "Partition", number: true, cell: (part) => `${part.partition}` },
      { name: "Leader", cell: (part) => part.leader ?? tag("none", "tag hot") },
      { name: "Copies", cell: (part) => part.replicas.map((node) => copy(part, node)) },
      { name: "In sync", number: true, cell: inSync },
      { name: "Epoch", number: true, cell: (part) => count(part.epoch) },
    ],
    partitions,
    (part) => `${part.topic}:${part.partition}`,
  );
}

const inSync = (part) => [
  `${part.in_sync.length} of ${part.replicas.length}`,
  part.in_sync.length < part.min_isr ? tag(`needs ${part.min_isr}`, "tag hot") : null,
];
const copy = (part, node) =>
  part.in_sync.includes(node) ? [node, " "] : [h("span", { class: "tag hot" }, `${node} is not in sync`), " "];

/** For the head of every page: which node answers, and whether all is well with the others. */
export function named({ mode, node, nodes, under_replicated: lacking, under_min_isr: closed, without_leader }) {
  const { version } = nodes.find((one) => one.name === node);
  if (mode !== "cluster") return `${node} ${version}`;
  const well = lacking + without_leader === 0;
  return h(
    "a",
    { href: "#/cluster" },
    `${node} of ${some(nodes.length, "node")}, ${version}`,
    well ? null : tag(some(lacking, "under-replicated partition"), "tag hot"),
    closed ? tag(`${some(closed, "partition")} can't be published to`, "tag hot") : null,
  );
}
