/**
 * What this page asks of a home, and what became of it: a message, a stop, the answer to a question.
 *
 * @module ask
 */

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

/** The line below a session in which its reader writes, where this browser may. */
export class Composer {
  #form;
  #input;
  #send;
  #stop;
  #said;
  #announce;
  #shown = null; // {home, session}
  #drafts = new Map(); // what was written and not sent, by session
  #tries = new Map(); // by session: the text that may have arrived, and the id under which it is repeated
  #busy = new Set(); // sessions in which something is under way

  /** @param {HTMLFormElement} form @param {(text: string) => void} announce */
  constructor(form, announce) {
    this.#form = form;
    this.#announce = announce;
    this.#input = form.querySelector("textarea");
    this.#send = form.querySelector("[type=submit]");
    this.#stop = form.querySelector("[data-stop]");
    this.#said = form.querySelector("[role=alert]");
    form.addEventListener("submit", (event) => (event.preventDefault(), this.#submit()));
    this.#stop.addEventListener("click", () => this.#cancel());
    this.#input.addEventListener("input", () => {
      if (this.#shown) this.#drafts.set(this.#key(), this.#input.value);
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
    this.#input.value = (this.#shown && this.#drafts.get(this.#key())) ?? "";
    setText(this.#said, "");
    this.draw();
  }

  draw() {
    const { home, session } = this.#shown ?? {};
    this.#form.hidden = !session?.id || !home.may("control");
    if (this.#form.hidden) return;
    const busy = this.#busy.has(this.#key());
    const online = home.state.state === "online";
    const working = session.working.size > 0;
    this.#send.disabled = busy || working || !online || !this.#input.value.trim();
    setText(this.#send, busy ? "Sending…" : "Send");
    this.#stop.hidden = !working;
    this.#stop.disabled = !online;
    this.#input.placeholder = online ? (working ? "Home is at work…" : "Message") : "Home can't be reached now; you can write meanwhile";
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
      const answer = await home.request("POST", `/sessions/${part(session.id)}/send`, { content }, { id });
      problem = answer.ok ? null : refusal(answer);
      this.#tries.delete(key); // answered: what comes next is another message
    } catch (error) {
      problem = failure(error, "the message");
    }
    this.#busy.delete(key);
    if (!problem && this.#drafts.get(key)?.trim() === content) this.#drafts.delete(key);
    if (this.#shown && this.#key() === key) {
      if (!problem && this.#input.value.trim() === content) this.#input.value = "";
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
