// What asks and what tells: dialogs, and the line at the bottom that says what came of it.

import { h } from "./dom.js";

let fading = null;

/** Says it to everybody, readers of screens too. */
export function tell(text) {
  clearTimeout(fading);
  document.getElementById("told").replaceChildren(h("p", {}, text));
  fading = setTimeout(() => document.getElementById("told").replaceChildren(), 6_000);
}

/** An error in words, with its code. */
export const failed = (error) =>
  h("p", { class: "failure" }, error.message, error.code ? [" ", h("code", {}, error.code)] : null);

/** Carries out what a form asks for: no second time meanwhile, and an error is shown beneath it. */
export function submits(form, go) {
  const outcome = h("div", { class: "outcome", role: "alert" });
  form.append(outcome);
  form.onsubmit = async (event) => {
    event.preventDefault();
    const buttons = [...form.querySelectorAll("button")];
    const values = Object.fromEntries(new FormData(form, event.submitter));
    for (const button of buttons) button.disabled = true;
    outcome.replaceChildren();
    try {
      const shown = await go(values);
      if (shown) outcome.replaceChildren(shown);
    } catch (error) {
      outcome.replaceChildren(failed(error));
    } finally {
      for (const button of buttons) button.disabled = false;
      if (form.contains(event.submitter) && document.activeElement === document.body) event.submitter.focus();
    }
  };
  return form;
}

let titles = 0;

/**
 * A dialog. `go(values)` carries out what was asked; what it gives back is shown and the dialog stays, otherwise it
 * closes. An action is { name, text, kind }; Enter means the first. Without any, there is only something to look at.
 */
export function ask({ title, body = [], actions = [], go, onclose, close = "Close", broad = false }) {
  const id = `dialog-${(titles += 1)}`;
  const leave = h("button", { type: "button", class: "plain", onclick: () => dialog.close() }, close);
  const form = h(
    "form",
    {},
    h("h2", { id }, title),
    body,
    h(
      "div",
      { class: "actions" },
      actions.map(({ name, text, kind = "primary" }) =>
        h("button", { name: "action", value: name, class: kind }, text),
      ),
      leave,
    ),
  );
  const dialog = h("dialog", { "aria-labelledby": id, class: broad ? "broad" : null }, form);
  submits(form, async (values) => {
    const shown = await go(values);
    if (!shown) dialog.close();
    return shown;
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    onclose?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
