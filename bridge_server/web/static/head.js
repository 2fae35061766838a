/**
 * The head of the session in front: what it is called, whose it is, its id for commands, how home's connection stands.
 *
 * @module head
 */

import { connection, drawPill } from "./connection.js";
import { el, setText, titleOf } from "./view.js";

const SHORT = 16; // characters of an id that are shown whole
const COPIED_MS = 2000;
const TITLES = { __proto__: null, begin: "New session", absent: "No such session" };

export class Head {
  #page;
  #announce;
  #id = "";
  #saying; // the timer

  /** @param {(id: string) => HTMLElement} page what the page has by ids @param {(text: string) => void} announce */
  constructor(page, announce) {
    this.#page = page;
    this.#announce = announce;
    page("session-id").addEventListener("click", () => this.#copy());
  }

  /** @param {import("./home.js").Home} home @param {import("./transcript.js").Session} session @param {import("./capabilities.js").Standing} standing */
  draw(home, session, standing) {
    const title = TITLES[standing] ?? titleOf(session);
    setText(this.#page("session-title"), title);
    document.title = `${title} · Session Bridge`;
    const { kind, words, detail } = connection(home.state);
    const doing = session.approvals.size ? "waiting for you" : session.working.size ? "working…" : "";
    setText(this.#page("session-home"), home.name);
    setText(this.#page("session-doing"), home.state.state === "online" ? doing : "");
    setText(this.#page("session-trouble"), detail ?? "");
    drawPill(this.#page("session-state"), kind, words);
    this.#drawId(standing === "begin" || title === session.id ? "" : session.id);
  }

  #drawId(id) {
    const button = this.#page("session-id");
    button.hidden = !id;
    if (this.#id === id) return;
    this.#id = id;
    clearTimeout(this.#saying);
    setText(button, short(id));
    button.title = `Copy the id: ${id}`;
    button.setAttribute("aria-label", button.title);
  }

  #copy() {
    const button = this.#page("session-id");
    const isDone = copy(this.#id);
    this.#announce(isDone ? "The id is copied." : `This browser copies nothing. The id is ${this.#id}`);
    setText(button, isDone ? "Copied" : this.#id);
    clearTimeout(this.#saying);
    if (isDone) this.#saying = setTimeout(() => setText(button, short(this.#id)), COPIED_MS);
  }
}

const short = (id) => (id.length > SHORT ? `${id.slice(0, 8)}…` : id);

/** Put a text on the clipboard, in the old way, which needs no HTTPS: many hubs at home have none. */
function copy(text) {
  const before = document.activeElement;
  const field = el("textarea", { class: "unseen", value: text, readOnly: true });
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  before?.focus({ preventScroll: true });
  return isDone;
}
