// Elements from descriptions, and changing what is there into what should be there, so that focus and typing survive.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "line", "rect", "circle", "polyline"]);
const HANDLERS = ["onclick", "onsubmit", "onchange", "oninput", "onpointermove", "onpointerleave"];

/** h("a", { href: "#/" }, "text", …). `key` tells a child from its siblings; null and false children are left out. */
export function h(tag, props, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node[name] = value;
    else if (name === "key") node.dataset.key = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Changes `old` into `fresh`. What is marked `data-own` looks after its children itself. */
export function morph(old, fresh) {
  if (old.nodeName !== fresh.nodeName || isOwn(old) !== isOwn(fresh)) {
    old.replaceWith(fresh);
  } else if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
  } else {
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name];
    if (!isOwn(fresh)) morphChildren(old, fresh);
  }
}

function morphChildren(old, fresh) {
  const wanted = new Set([...fresh.childNodes].map(keyOf));
  const byKey = new Map();
  for (const child of [...old.childNodes]) {
    const key = keyOf(child);
    if (key === undefined) continue;
    if (wanted.has(key)) byKey.set(key, child);
    else child.remove();
  }
  let here = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = keyOf(child);
    const same = key === undefined ? (here && keyOf(here) === undefined ? here : null) : byKey.get(key);
    if (!same) {
      old.insertBefore(child, here);
    } else {
      if (same === here) here = here.nextSibling;
      else old.insertBefore(same, here);
      morph(same, child);
    }
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

const keyOf = (node) => node.dataset?.key;
const isOwn = (node) => node.dataset?.own !== undefined;

/** A table whose columns are { name, cell(row), number, sort, wide }; scrolls by itself where the page is narrow. */
export function table(caption, columns, rows, keyed) {
  const kind = (column) => (column.number ? "number" : column.wide ? "wide" : null);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: "hidden" }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((c) => h("th", { scope: "col", class: kind(c) }, named(c))),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            { key: keyed(row) },
            columns.map((c, i) => h(i ? "td" : "th", { scope: i ? null : "row", class: kind(c) }, c.cell(row))),
          ),
        ),
      ),
    ),
  );
}

const named = (column) => (column.name ? column.name : h("span", { class: "hidden" }, "Actions"));

export const card = (title, { aside, note } = {}, ...body) =>
  h(
    "section",
    { class: "card", "aria-label": title, key: title },
    h("div", { class: "head" }, h("h2", {}, title), aside ?? null),
    note ? h("p", { class: "quiet" }, note) : null,
    body,
  );

export const empty = (said, ...next) =>
  h("div", { class: "empty" }, h("p", {}, said), h("p", { class: "quiet" }, next));

export const facts = (pairs) =>
  h(
    "dl",
    { class: "facts" },
    pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );

let fields = 0;

/** A labelled field of a form. Its ids are new each time, so a form is its own (`data-own`), or in a dialog. */
export function field(label, control, hint) {
  control.id = `field-${(fields += 1)}`;
  if (hint) control.setAttribute("aria-describedby", `${control.id}-hint`);
  return h(
    "div",
    { class: "field" },
    h("label", { for: control.id }, label),
    control,
    hint ? h("small", { id: `${control.id}-hint` }, hint) : null,
  );
}

export const choice = (name, options, chosen, more = {}) =>
  h(
    "select",
    { name, ...more },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  );
