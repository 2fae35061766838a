/**
 * What this page asks of a home, and what became of it: a message, a stop, the answer to a question.
 *
 * @module ask
 */

import { drafts } from "./tab.js";
import { el, setText } from "./view.js";

const part = encodeURIComponent;

/** Why something was not done, in words. `what` is what the reader wanted, as "the message". */
export function failure(error, what) {
  if (error.sent) return `No answer came. Home may have got ${what} all the same; trying again is safe, it is not done twice.`;
  switch (error.code) {
    case "server_offline":
      return `Home is not connected. Nothing was done, and nothing is kept for later: try again when it is back.`;
    case "unsupported":
      return "This home can't be asked from here: it forwards another program's events, or is an older version.";
    case "forbidden":
      return "This browser was not given the right to do that. Pair it again with more rights, at home.";
    case "rate_limited":
      return "Too much at once. Try again in a moment.";
    case "too_large":
      return "This is too long to be sent.";
    case "timeout":
    case "closed":
      return `The hub could not be reached. Home did not get ${what}.`;
    default:
      return `Home could not be asked: ${error.message}`;
  }
}

/** What home itself said no with. */
export const refusal = ({ status, body }) => body?.error?.message ?? `Home refused (${status}).`;

/** Ask, and return what went wrong in words, null when nothing did. */
async function tried(home, what, ...request) {
  try {
    const answer = await home.request(...request);
    return answer.ok ? null : refusal(answer);
  } catch (error) {
    return failure(error, what);
  }
}

/** Why nothing can be written where this browser has the right to. */
const WHY_NOT = {
  __proto__: null,
  absent: "Home has no session of this id, and none of its events came here.",
  closed: "Only watched here: this home takes no requests.",
  watched: "Only watched here: its agent runs elsewhere.",
  unanswered: "Only watched here: no runner is set at home, so nobody would answer.",
};

const MOST_LINES = 6; // as in the style sheet
const NO_GROWING = !globalThis.CSS?.supports("field-sizing", "content");

/** The line below a session in which its reader writes, where home takes what they write; else why it does not. */
export class Composer {
  #form;
  #why;
  #input;
  #send;
  #stop;
  #said;
  #announce;
  #shown = null; // {home, session}
  #tries = new Map(); // by session: the text that may have arrived, and the id under which it is repeated
  #busy = new Set(); // sessions in which something is under way

  /** @param {HTMLFormElement} form @param {HTMLElement} why @param {(text: string) => void} announce */
  constructor(form, why, announce) {
    this.#form = form;
    this.#why = why;
    this.#announce = announce;
    this.#input = form.querySelector("textarea");
    this.#send = form.querySelector("[type=submit]");
    this.#stop = form.querySelector("[data-stop]");
    this.#said = form.querySelector("[role=alert]");
    addEventListener("resize", () => this.#grow());
    form.addEventListener("submit", (event) => (event.preventDefault(), this.#submit()));
    this.#stop.addEventListener("click", () => this.#cancel());
    this.#input.addEventListener("input", () => {
      if (this.#shown) drafts.set(this.#key(), this.#input.value);
      this.#grow();
      this.draw();
    });
    this.#input.addEventListener("keydown", (event) => {
      // A finger has no other way to begin a line; a keyboard has Shift.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches) return;
      event.preventDefault();
      if (!this.#send.disabled) this.#submit();
    });
  }

  /** @param {{home: import("./home.js").Home, id: string} | null} shown */
  show(shown) {
    this.#shown = shown && { home: shown.home, session: shown.home.transcript.session(shown.id) };
    this.#write((this.#shown && drafts.get(this.#key())) ?? "");
    setText(this.#said, "");
    this.draw();
  }

  /** Whether what is in front is a session that is only to be begun. */
  get begins() {
    return this.standing === "begin";
  }

  /** How the session in front stands, null where there is none. @returns {import("./capabilities.js").Standing | null} */
  get standing() {
    return this.#shown && this.#shown.home.capabilities.of(this.#shown.session);
  }

  focus() {
    this.#input.focus({ preventScroll: true });
  }

  draw() {
    const { standing } = this;
    setText(this.#why, WHY_NOT[standing] ?? "");
    const hidden = standing !== "send" && standing !== "begin";
    if (this.#form.hidden !== hidden) {
      this.#form.hidden = hidden;
      this.#grow(); // what is hidden has no height
    }
    if (hidden) return;
    const { home, session } = this.#shown;
    const busy = this.#busy.has(this.#key());
    const online = home.state.state === "online";
    const working = session.working.size > 0;
    this.#send.disabled = busy || working || !online || !this.#input.value.trim();
    setText(this.#send, busy ? "Sending…" : "Send");
    this.#stop.hidden = !working;
    this.#stop.disabled = !online;
    const idle = standing === "begin" ? "First message" : "Message";
    const busily = session.approvals.size ? "Waiting for you" : "At work…";
    this.#hint(online ? (working ? busily : idle) : "Home can't be reached: nothing can be sent now");
  }

  #hint(words) {
    if (this.#input.placeholder === words) return;
    this.#input.placeholder = words;
    this.#grow(); // beside it a button came or went, too
  }

  #write(text) {
    this.#input.value = text;
    this.#grow();
  }

  /** As high as its text, where the style sheet alone can't do that. */
  #grow() {
    if (!NO_GROWING) return;
    const input = this.#input;
    input.rows = 1;
    while (input.rows < MOST_LINES && input.scrollHeight > input.clientHeight) input.rows += 1;
  }

  #key() {
    return JSON.stringify([this.#shown.home.id, this.#shown.session.id]);
  }

  async #submit() {
    const key = this.#key();
    const { home, session } = this.#shown;
    const content = this.#input.value.trim();
    if (!content || this.#busy.has(key)) return;
    const before = this.#tries.get(key);
    const id = before?.content === content ? before.id : home.newId();
    this.#tries.set(key, { content, id });
    this.#busy.add(key);
    setText(this.#said, "");
    this.draw();
    let problem = null;
    try {
      const made = this.begins ? await home.capabilities.make(session.id) : { ok: true };
      const send = () => home.request("POST", `/sessions/${part(session.id)}/send`, { content }, { id });
      const answer = made.ok ? await send() : made;
      problem = answer.ok ? null : refusal(answer);
      this.#tries.delete(key); // answered: what comes next is another message
    } catch (error) {
      problem = failure(error, "the message");
    }
    this.#busy.delete(key);
    if (!problem && drafts.get(key)?.trim() === content) drafts.set(key, "");
    if (this.#shown && this.#key() === key) {
      if (!problem && this.#input.value.trim() === content) this.#write("");
      setText(this.#said, problem ?? "");
      this.draw();
    } else if (problem) {
      this.#announce(problem);
    }
    if (!problem) this.#announce("Sent.");
  }

  async #cancel() {
    const { home, session } = this.#shown;
    const key = this.#key();
    for (const request of [...session.working]) {
      const problem = await tried(home, "it", "POST", `/sessions/${part(session.id)}/requests/${part(request)}/cancel`);
      if (problem && this.#shown && this.#key() === key) setText(this.#said, problem);
      if (!problem) this.#announce("Home was told to stop.");
    }
  }
}

/** The cards of what a session's agent asks before it goes on. `home` answers them where this browser may. */
export function questions(home, session) {
  return [...session.approvals.values()].map((asked) => {
    const said = el("p", { class: "problem", role: "alert" });
    const answer = async (decision) => {
      buttons.forEach((button) => (button.disabled = true));
      setText(said, "");
      const path = `/sessions/${part(session.id)}/requests/${part(asked.request)}/approvals/${part(asked.id)}`;
      const problem = await tried(home, "the answer", "POST", path, { decision });
      setText(said, problem ?? "");
      buttons.forEach((button) => (button.disabled = !problem)); // answered: the card goes when home says so
    };
    const name = (verb) => `${verb}: ${asked.name}`;
    const buttons = [
      el("button", { type: "button", "aria-label": name("Allow"), onclick: () => answer("allow") }, "Allow"),
      el("button", { type: "button", class: "quiet", "aria-label": name("Deny"), onclick: () => answer("deny") }, "Deny"),
    ];
    const may = home.may("approve");
    return el(
      "article",
      { class: "card warning question", "data-approval": asked.id },
      el("h3", { dir: "auto" }, el("span", { class: "severity" }, "asks you"), `May it use ${asked.name}?`),
      asked.args ? el("pre", { dir: "auto" }, asked.args) : null,
      may ? el("div", { class: "actions" }, ...buttons) : el("p", {}, "It waits for an answer at home: this browser may only read."),
      said,
    );
  });
}
