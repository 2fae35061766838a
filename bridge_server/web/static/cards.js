/**
 * The cards of notifications: a list of them in one place of the page, and the one that stands in front of it.
 *
 * @module cards
 */

import { precedence } from "./notices.js";
import { el, setText } from "./view.js";

/**
 * @typedef {{key: string, notice: import("./notices.js").Notice, label: string | null, verb: string,
 *   act: () => void}} Entry
 * `label` says whose it is where that can't be seen from the place; `act` is what the button does, which says `verb`.
 */

const SHOWN = 2; // that many stand unfolded; of more the first, until the reader wants them all

export class Cards {
  #place;
  #cards = new Map();
  #fold = el("button", { type: "button", class: "quiet fold", onclick: () => this.#turn() });
  #given = [];
  #entries = []; // the same, in their order here
  #isOpen = false;

  constructor(place) {
    this.#place = place;
  }

  /**
   * Show these: errors first, then warnings, and of each the newest, or what came last where times say nothing. What stays keeps the focus.
   * @param {Entry[]} entries
   */
  draw(entries) {
    this.#given = entries;
    this.#entries = [...entries].reverse().sort((a, b) => precedence(a.notice, b.notice));
    const focused = this.#place.contains(document.activeElement) ? document.activeElement : null;
    const before = this.#cards;
    this.#cards = new Map(this.#entries.map((entry) => [entry.key, before.get(entry.key) ?? new Card()]));
    for (const [key, card] of before) if (!this.#cards.has(key)) card.node.remove();
    this.#entries.forEach((entry, at) => {
      const card = this.#cards.get(entry.key);
      card.draw(entry);
      if (this.#place.children[at] !== card.node) this.#place.insertBefore(card.node, this.#place.children[at] ?? null);
    });
    if (entries.length > SHOWN) this.#drawFold();
    else this.#unfold();
    this.#place.hidden = !entries.length;
    if (focused && focused !== document.activeElement) this.#focus(focused);
  }

  #drawFold() {
    const folded = this.#entries.slice(1);
    this.#place.classList.toggle("folded", !this.#isOpen);
    [...this.#cards.values()].forEach(({ node }, at) => (node.hidden = at > 0 && !this.#isOpen));
    const errors = folded.filter(({ notice }) => notice.severity === "error").length;
    const among = errors ? `, ${errors} of them ${errors > 1 ? "errors" : "an error"}` : "";
    const words = this.#isOpen ? "Show less" : `${folded.length} more${among}`;
    setText(this.#fold, words);
    this.#fold.setAttribute("aria-expanded", String(this.#isOpen));
    this.#fold.setAttribute("aria-label", `Notifications: ${this.#isOpen ? words : `show ${words}`}`);
    if (this.#place.lastChild !== this.#fold) this.#place.append(this.#fold);
  }

  #unfold() {
    this.#isOpen = false;
    this.#fold.remove();
    this.#place.classList.remove("folded");
    for (const { node } of this.#cards.values()) node.hidden = false;
  }

  #turn() {
    this.#isOpen = !this.#isOpen;
    this.draw(this.#given);
  }

  /** The focus was on something that was moved or is gone: on it again, or on what stands there now. */
  #focus(focused) {
    const next = focused.isConnected && !focused.closest("[hidden]") ? focused : this.#place.querySelector("article:not([hidden]) button");
    next?.focus({ preventScroll: true });
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
