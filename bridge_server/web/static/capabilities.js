/**
 * What a home can be asked for from here: which sessions it has, its own rather than only watched, and whether anybody
 * there answers messages. No event says so: home is asked, again each time it is back.
 *
 * @module capabilities
 */

import { begun } from "./tab.js";

const PAGE = 100;
const MOST_LISTED = 1000; // sessions, the last changed ones
const GONE = new Set(["server_offline", "closed"]); // nobody was asked: what was known stays

/**
 * `absent`: there is no such session; `reader`: this browser may not write, or there is no session to write to; `unknown`: home was not asked yet; `closed`:
 * home takes no requests at all; `watched`: home has it from another program; `unanswered`: nobody would answer; `send`:
 * home takes a message; `begin`: a message begins it.
 * @typedef {"absent" | "reader" | "unknown" | "closed" | "watched" | "unanswered" | "send" | "begin"} Standing
 */

export class Capabilities {
  #home;
  #takesRequests = true;
  #answers; // whether there is a runner; undefined: not known
  #sessions = new Map(); // id -> whether home has it; absent: not known
  #caughtUp = false; // what happened is known: a session without events has none

  /** @param {import("./home.js").Home} home */
  constructor(home) {
    this.#home = home;
  }

  /** Whether a session can be begun here now. */
  get canBegin() {
    return this.#home.may("control") && this.#home.state.state === "online" && this.#takesRequests && this.#answers === true;
  }

  /** @param {import("./transcript.js").Session} session @returns {Standing} */
  of(session) {
    this.#caughtUp ||= this.#home.state.caughtUp;
    const has = this.#sessions.get(session.id);
    const mine = begun.has(session.id); // its events may come before home has said that it has it
    const isEmpty = !session.items.length && !session.notices.size;
    if (session.id && has === false && isEmpty && !mine && this.#caughtUp) return "absent";
    if (!session.id || !this.#home.may("control")) return "reader";
    if (!this.#takesRequests) return "closed";
    if (has === undefined || this.#answers === undefined) return "unknown";
    if (!has && !mine && !isEmpty) return "watched";
    if (!this.#answers) return "unanswered";
    return has ? "send" : mine ? "begin" : "unknown";
  }

  /** Ask home anew. @param {string | null} session the id of the one in front */
  async refresh(session) {
    await Promise.all([this.#list(), session ? this.look(session) : null]);
  }

  /** The sessions that home has, those too of which no event is held here. */
  async #list() {
    const found = [];
    let limit = PAGE;
    let before = "";
    do {
      const answer = await this.#get(`/sessions?limit=${limit}${before}`);
      if (!answer) return;
      if (answer.code === "too_large" && limit > 1) {
        limit = Math.floor(limit / 10); // their metadata is as long as their owners made it
        continue;
      }
      if (!before) this.#answers = answer.body?.runner !== null; // an older home does not say: sending will tell
      if (!Array.isArray(answer.body?.sessions)) return;
      found.push(...answer.body.sessions);
      before = answer.body.next_before ? `&before=${answer.body.next_before}` : null;
    } while (before !== null && found.length < MOST_LISTED);
    for (const { session_id } of found) this.#sessions.set(session_id, true);
    this.#home.transcript.list(found);
  }

  /** Ask whether home has this session. */
  async look(id) {
    if (!id) return;
    const answer = await this.#get(`/sessions/${encodeURIComponent(id)}`);
    if (answer) this.#sessions.set(id, answer.status < 400 || answer.status >= 500);
  }

  /** A session was made at home, says an event. */
  async made(id) {
    if (this.#sessions.get(id) === false) await this.look(id);
  }

  /** An id for a session that is to be begun. */
  newSession() {
    const bytes = crypto.getRandomValues(new Uint8Array(10));
    const id = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    begun.set(id, "1");
    this.#sessions.set(id, false);
    return id;
  }

  /** Have home make a session; may be tried again. @returns {Promise<object>} its answer; rejects as a request does */
  async make(id) {
    begun.set(id, "1");
    const answer = await this.#home.request("POST", "/sessions", { session_id: id });
    const made = answer.ok || answer.body?.error?.code === "session_exists"; // by an attempt whose answer was lost
    if (made) this.#sessions.set(id, true);
    return { ...answer, ok: made };
  }

  /** @returns {Promise<object | null>} null where home was not asked */
  async #get(path) {
    try {
      const answer = await this.#home.request("GET", path);
      this.#takesRequests = true;
      return answer;
    } catch ({ code }) {
      if (code === "unsupported") this.#takesRequests = false;
      if (code === "bad_push") return { status: 404 }; // an id that no session of a home has
      // Something else may be in the way, of which sending will tell.
      return GONE.has(code) || code === "unsupported" ? null : { status: 0, code };
    }
  }
}
