/**
 * The cards of notifications: a list of them in one place of the page, and the one that stands in front of it.
 *
 * @module cards
 */

import { el, setText } from "./view.js";

/**
 * @typedef {{key: string, notice: import("./notices.js").Notice, label: string | null, verb: string,
 *   act: () => void}} Entry
 * `label` says whose it is where that can't be seen from the place; `act` is what the button does, which says `verb`.
 */

export class Cards {
  #place;
  #cards = new Map();

  constructor(place) {
    this.#place = place;
  }

  /** Show exactly these, in this order. What stays is not touched, so that it keeps the focus. @param {Entry[]} entries */
  draw(entries) {
    const before = this.#cards;
    this.#cards = new Map(entries.map((entry) => [entry.key, before.get(entry.key) ?? new Card()]));
    for (const [key, card] of before) if (!this.#cards.has(key)) card.node.remove();
    entries.forEach((entry, at) => {
      const card = this.#cards.get(entry.key);
      card.draw(entry);
      if (this.#place.children[at] !== card.node) this.#place.insertBefore(card.node, this.#place.children[at] ?? null);
    });
    this.#place.hidden = !entries.length;
  }
}

class Card {
  #entry = null;
  #severity = el("span", { class: "severity" });
  #title = document.createTextNode("");
  #from = el("p", { class: "from", dir: "auto" });
  #body = el("p", { class: "body", dir: "auto" });
  #button = el("button", { type: "button", class: "quiet", onclick: () => this.#entry.act() });
  #problem = el("p", { class: "problem", role: "alert" });

  constructor() {
    const heading = el("h3", { dir: "auto" }, this.#severity, this.#title);
    this.node = el("article", {}, heading, this.#from, this.#body, this.#button, this.#problem);
  }

  draw(entry) {
    this.#entry = entry;
    const { notice, label, verb } = entry;
    this.node.className = `card ${notice.severity}`;
    this.node.dataset.notice = notice.id;
    setText(this.#severity, notice.severity);
    setText(this.#title, notice.title);
    setText(this.#from, label ?? "");
    setText(this.#body, notice.body);
    setText(this.#button, verb);
    this.#button.setAttribute("aria-label", `${verb}: ${notice.title}`);
    this.#button.disabled = Boolean(notice.busy);
    setText(this.#problem, notice.problem ?? "");
  }
}

/** The notification in front of its surface: one at a time, until it is dismissed or put off. */
export class Modal {
  #dialog;
  #card = new Card();
  #entry = null;

  /** @param {HTMLDialogElement} dialog @param {() => void} changed */
  constructor(dialog, changed) {
    this.#dialog = dialog;
    const later = () => {
      if (this.#entry) this.#entry.notice.later = true;
      changed();
    };
    dialog.append(this.#card.node, el("button", { type: "button", class: "quiet", onclick: later }, "Later"));
    dialog.addEventListener("cancel", (event) => (event.preventDefault(), later()));
  }

  /** @param {Entry | undefined} entry */
  draw(entry) {
    this.#entry = entry;
    if (entry) {
      this.#card.draw(entry);
      this.#dialog.setAttribute("aria-label", entry.notice.title);
      if (!this.#dialog.open) this.#dialog.showModal();
    } else if (this.#dialog.open) {
      this.#dialog.close();
    }
  }
}
