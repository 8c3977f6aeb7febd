// Light, dark, or as the system has it. Not a module: it runs before anything is drawn.
"use strict";
(() => {
  const CHOICES = ["auto", "light", "dark"];
  const stored = () => {
    try {
      return localStorage.getItem("penstock.theme");
    } catch {
      return null; // Storage is switched off.
    }
  };
  let choice = CHOICES.includes(stored()) ? stored() : "auto";

  const apply = () => {
    document.documentElement.dataset.theme = choice;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${choice}`;
  };

  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      try {
        localStorage.setItem("penstock.theme", choice);
      } catch {
        // It holds for this page, then.
      }
      apply();
    });
  });
})();
