// Messages that wait for their time: cancelling them, and moving them.

import { ask as request, at, get } from "./api.js";
import { card, empty, field, h, table } from "./dom.js";
import { ask, tell } from "./ui.js";
import { brief, clock, count, fromNow, keyIn } from "./words.js";

const SHOWN = 100;

export async function read(topic, signal) {
  const { scheduled } = await get(at`topics/${topic.name}/scheduled`, { limit: SHOWN, as: "text" }, signal);
  return scheduled;
}

export function draw({ refresh }, topic, scheduled) {
  const note = topic.scheduled > scheduled.length ? `The next ${scheduled.length} of ${count(topic.scheduled)}.` : null;
  return card("Scheduled messages", { note }, scheduled.length ? rows(topic, scheduled, refresh) : none(topic));
}

const rows = (topic, scheduled, refresh) =>
  table(
    `Scheduled messages of ${topic.name}`,
    [
      { name: "Message", cell: (m) => h("a", { href: `#/messages/${encodeURIComponent(m.id)}` }, m.id) },
      {
        name: "Due",
        cell: (m) => [
          h("time", { datetime: m.deliver_at }, clock(m.deliver_at)),
          " ",
          h("span", { class: "quiet" }, fromNow(m.deliver_at)),
        ],
      },
      { name: "Key", cell: keyIn },
      { name: "Value", wide: true, cell: (m) => h("code", {}, brief(m, 80)) },
      {
        name: "",
        cell: (m) =>
          h(
            "div",
            { class: "buttons" },
            h("button", { onclick: () => move(m, refresh), "aria-label": `Reschedule ${m.id}` }, "Reschedule"),
            h(
              "button",
              { class: "danger", onclick: () => cancel(m, refresh), "aria-label": `Cancel ${m.id}` },
              "Cancel",
            ),
          ),
      },
    ],
    scheduled,
    (m) => m.id,
  );

const none = (topic) =>
  empty(
    "No message of this topic waits for its time.",
    h("a", { href: `#/topics/${encodeURIComponent(topic.name)}/publish` }, "Publish one"),
    " with a delay, and it is here until it is due.",
  );

function move(message, refresh) {
  ask({
    title: `Reschedule ${message.id}`,
    body: [
      h("p", { class: "quiet" }, `It is due ${fromNow(message.deliver_at)}. Say one of the two.`),
      field(
        "From now, after",
        h("input", { name: "delay", autocomplete: "off" }),
        "Such as 10m, 1h30m or 7d. 0s is at once.",
      ),
      field(
        "Or at",
        h("input", { name: "when", type: "datetime-local", step: 1 }),
        "In the time zone of this browser.",
      ),
    ],
    actions: [{ name: "move", text: "Reschedule" }],
    close: "Leave it",
    go: async ({ delay, when }) => {
      if (!delay === !when) throw new Error("Say after how long, or when: one of the two.");
      const body = delay ? { delay: delay.trim() } : { deliver_at: new Date(when).toISOString() };
      await request("PATCH", at`scheduled/${message.id}`, { body });
      tell(`${message.id} was moved.`);
      refresh();
    },
  });
}

function cancel(message, refresh) {
  ask({
    title: `Cancel ${message.id}?`,
    body: h("p", {}, "No group will ever get it. Readers of the log still see it."),
    actions: [{ name: "cancel", text: "Cancel the message", kind: "danger" }],
    close: "Leave it",
    go: async () => {
      await request("DELETE", at`scheduled/${message.id}`);
      tell(`${message.id} was cancelled.`);
      refresh();
    },
  });
}
