// The throughput of the last minutes: lines in an SVG that stretches, labels beside it in HTML that do not.

import { h } from "./dom.js";
import { rate } from "./words.js";

// The shorter one until there is more to show.
const SPANS = [
  { ms: 60_000, marks: ["1 min ago", "40 s", "20 s", "now"] },
  { ms: 180_000, marks: ["3 min ago", "2 min", "1 min", "now"] },
];
const W = 1000;
const H = 100;
const LINES = [
  { name: "published", said: "Published" },
  { name: "done", said: "Done by groups" },
];

export function chart(points) {
  const now = points.at(-1)?.at ?? 0;
  const span = SPANS.find(({ ms }) => now - (points[0]?.at ?? 0) <= ms) ?? SPANS.at(-1);
  const most = Math.max(...points.flatMap((p) => [p.published ?? 0, p.done ?? 0]), 0);
  const top = nice(most);
  const place = (p, name) => [W - ((now - p.at) / span.ms) * W, H - (p[name] / top) * (H - 4)];
  const latest = points.at(-1) ?? {};
  const said = LINES.map((line) => `${line.said} ${rate(latest[line.name] ?? null)}`).join(", ");
  const isQuiet = !points.some((p) => p.published !== null);
  return h(
    "figure",
    { class: "chart" },
    h(
      "figcaption",
      {},
      LINES.map((line) =>
        h("span", { class: `legend ${line.name}` }, line.said, " ", h("b", {}, rate(latest[line.name] ?? null))),
      ),
    ),
    h(
      "div",
      { class: "plot" },
      h(
        "div",
        { class: "ys", "aria-hidden": "true" },
        [top, top / 2, 0].map((y) => h("span", {}, rate(y))),
      ),
      h(
        "div",
        { class: "area", onpointermove: (event) => point(event, points, now, span.ms), onpointerleave: hide },
        h(
          "svg",
          { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": `Throughput: ${said}` },
          [4, (H + 4) / 2, H].map((y) => h("line", { class: "grid", x1: 0, x2: W, y1: y, y2: y })),
          runs(points, "published").map((run) =>
            h("path", { class: "fill", d: filled(run.map((p) => place(p, "published"))) }),
          ),
          LINES.toReversed().flatMap(({ name }) =>
            runs(points, name).map((run) =>
              h("path", { class: `line ${name}`, d: drawn(run.map((p) => place(p, name))) }),
            ),
          ),
        ),
        h("div", { class: "tip", "data-own": true, hidden: true }),
        isQuiet ? h("p", { class: "quiet waiting" }, "The first rates come with the next reads.") : null,
      ),
      h(
        "div",
        { class: "xs", "aria-hidden": "true" },
        span.marks.map((x) => h("span", {}, x)),
      ),
    ),
  );
}

/** Where nobody looked, the line has a gap. */
function runs(points, name) {
  const found = [[]];
  for (const p of points) {
    if (p[name] === null) found.push([]);
    else found.at(-1).push(p);
  }
  return found.filter((run) => run.length);
}

const drawn = (places) => places.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
const filled = (places) => `${drawn(places)}L${places.at(-1)[0].toFixed(1)} ${H}L${places[0][0].toFixed(1)} ${H}Z`;

/** 1, 2 or 5 with zeros, at least as much. */
function nice(most) {
  if (most <= 1) return 1;
  const unit = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].find((step) => step * unit >= most) * unit;
}

function point(event, points, now, ms) {
  const box = event.currentTarget.getBoundingClientRect();
  const tip = event.currentTarget.querySelector(".tip");
  const at = now - (1 - (event.clientX - box.left) / box.width) * ms;
  const nearest = points.reduce((best, p) => (Math.abs(p.at - at) < Math.abs(best.at - at) ? p : best), points[0]);
  if (!nearest || nearest.published === null) return;
  tip.hidden = false;
  tip.textContent = `${rate(nearest.published)} published, ${rate(nearest.done)} done`;
  tip.style.left = `${Math.min(Math.max(event.clientX - box.left, 90), box.width - 90)}px`;
}

function hide(event) {
  event.currentTarget.querySelector(".tip").hidden = true;
}

/** How much of the most: a bar as wide as its cell. */
export const bar = (value, most) =>
  h(
    "svg",
    { class: "bar", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("rect", { class: "track", width: 100, height: 6 }),
    h("rect", { class: "part", width: most ? (100 * value) / most : 0, height: 6 }),
  );
