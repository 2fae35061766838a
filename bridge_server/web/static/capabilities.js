/**
 * What a home can be asked for from here: whether anybody there answers messages, and which sessions are its own rather
 * than only watched. No event says so: home is asked, again each time it is back.
 *
 * @module capabilities
 */

const GONE = new Set(["server_offline", "closed"]); // nobody was asked: what was known stays

/**
 * `reader`: this browser may not write, or there is no session to write to; `unknown`: home was not asked yet; `closed`:
 * home takes no requests at all; `watched`: home has it from another program; `unanswered`: nobody would answer; `send`:
 * home takes a message; `begin`: a message begins it.
 * @typedef {"reader" | "unknown" | "closed" | "watched" | "unanswered" | "send" | "begin"} Standing
 */

export class Capabilities {
  #home;
  #takesRequests = true;
  #answers; // whether there is a runner; undefined: not known
  #sessions = new Map(); // id -> whether home has it; absent: not known
  #mine = new Set(); // ids of sessions that are begun here: their events may come before home has said that it has them
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
    if (!session.id || !this.#home.may("control")) return "reader";
    if (!this.#takesRequests) return "closed";
    if (has === undefined || this.#answers === undefined) return "unknown";
    const mine = this.#mine.has(session.id);
    if (!has && !mine && (session.items.length || session.notices.size)) return "watched";
    if (!this.#answers) return "unanswered";
    return has ? "send" : mine || this.#caughtUp ? "begin" : "unknown";
  }

  /** Ask home anew. @param {string | null} session the id of the one in front */
  async refresh(session) {
    if (!this.#home.may("control")) return;
    const [sessions] = await Promise.all([this.#get("/sessions?limit=1"), session ? this.look(session) : null]);
    if (sessions) this.#answers = sessions.body?.runner !== null; // an older home does not say: sending will tell
  }

  /** Ask whether home has this session. */
  async look(id) {
    if (!id || !this.#home.may("control")) return;
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
    this.#mine.add(id);
    this.#sessions.set(id, false);
    return id;
  }

  /** Have home make a session; may be tried again. @returns {Promise<object>} its answer; rejects as a request does */
  async make(id) {
    this.#mine.add(id);
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
      return GONE.has(code) || code === "unsupported" ? null : { status: 0 };
    }
  }
}
