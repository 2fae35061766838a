/**
 * What the events of one home add up to: sessions, and in each the items a person reads. Pure: no DOM, no clock.
 *
 * An item is changed in place while it grows (a message by its partials, a tool call by its output) and never moves:
 * what a request says first ("working") and last ("done") are two items.
 * `session.changed` collects the items to draw again; whoever draws empties it.
 *
 * @module transcript
 */

import { Notices } from "./notices.js";
import { Past, titled } from "./past.js";
import { calledTool, said } from "./texts.js";
import { HANDLERS, gistOf, isWrapped } from "./vocabulary.js";

export const MAX_ITEMS = 20_000; // per session; the oldest quarter goes when it is exceeded

const NOTIFICATION = /^(application|session)_notification_(created|updated|resolved|dismissed|expired)$/;
const SILENT = new Set(["checkpoint", "session_checkpoint"]);

/** One home. `notices` are its notifications that belong to no session. */
export class Transcript {
  /** @type {Map<string, Session>} */
  sessions = new Map();
  notices = new Notices("application");
  #isCut = false; // events are missing before what comes next: who begins in the middle may have begun earlier
  #clock = 0;

  /** Take one event in, in order. @param {object} event @returns {Session | null} the session it belongs to */
  apply(event) {
    const kind = NOTIFICATION.exec(event.type);
    if (kind?.[1] === "application") {
      this.notices.apply(event, kind[2]);
      return null;
    }
    const session = this.session(typeof event.session_id === "string" ? event.session_id : "");
    session.touched = ++this.#clock;
    session.begin(event, this.#isCut);
    if (kind) session.notices.apply(event, kind[2]);
    else session.apply(event);
    return session;
  }

  /** @param {string} id @returns {Session} */
  session(id) {
    if (!this.sessions.has(id)) this.sessions.set(id, new Session(id));
    return this.sessions.get(id);
  }

  /** Events before the next one are missing, and nobody told where. */
  cut() {
    this.#isCut = true;
  }

  /** What home lists, all of it or the part that was asked for. @param {object[]} records the last changed first */
  list(records) {
    for (const session of this.sessions.values()) session.listed = null;
    for (const record of records) {
      const session = this.session(record.session_id);
      session.listed = Number(record.cursor_event_id) || 0;
      session.name(record.metadata);
    }
  }

  /** Home says that it removed the events behind `from`. */
  removed(from) {
    for (const session of this.sessions.values()) {
      for (const item of session.items) {
        if (item.kind !== "gap" || item.from !== from) continue;
        item.isRemoved = true;
        session.changed.add(item);
      }
    }
  }

  /** Say in every session that has begun that something is missing here. @param {object} gap @returns {Session[]} */
  gap(gap) {
    if (gap.reason !== "hub_reset" && gap.resume_after !== "0") this.#isCut = true;
    const begun = [...this.sessions.values()].filter((session) => session.items.length);
    if (["epoch_changed", "ahead"].includes(gap.reason)) for (const session of begun) session.past = null; // of another store
    for (const session of begun) session.add({ kind: "gap", reason: gap.reason, from: gap.from_id });
    return begun;
  }

  /** What was told as missing came after all. @param {string} from the `from_id` of the gap @returns {Session[]} */
  heal(from) {
    const isIt = (item) => item.kind === "gap" && item.from === from && !item.healed;
    const healed = [...this.sessions.values()].filter((session) => session.items.some(isIt));
    for (const session of healed) {
      for (const item of session.items.filter(isIt)) {
        item.healed = true;
        session.changed.add(item);
      }
    }
    return healed;
  }
}

/**
 * One session. Items: `{n, kind, …}` with `n` rising by one; kinds are message (role, text, streaming, broken), tool
 * (name, args, output, result, state: running, asking while it waits for a person, done, failed or unanswered), request
 * (state: running, then over once a second item says how it ended), error (text, printed), warning (text), note (text),
 * other (type, event, text), gap (reason, isRemoved), mark, start (reason: why what came before it is no event here,
 * `removed`, `unknown` or `dropped`, null if nothing did; hasMessages: home's messages of before stand above it).
 */
export class Session {
  items = [];
  changed = new Set();
  notices = new Notices("session");
  working = new Set(); // request ids
  approvals = new Map(); // by id: what a request asks before it goes on, {id, request, name, args}
  touched = 0;
  title = ""; // of its first message
  named = ""; // by whoever made it
  listed = null; // the place in home's own list of sessions, while it is there
  first = null; // the id of the first event held here
  isWhole = false; // no event is missing before that one
  isCopy = false; // of a session whose messages its events do not repeat
  isRecalled = false; // what home has of before is in `items`
  isRecalling = false;
  past = new Past(); // null once its events can't be compared with what home has
  said = null; // the item that said something last
  failed = false;
  mark = null; // where this visit began, once something came
  #next = 0;
  #start = null; // the item that says that the beginning is not here
  #open = new Map(); // request id -> the message that its partials grow
  #tools = new Map(); // request id and tool call id -> item: models number their calls anew in each request
  #requests = new Map(); // request id -> the item that says how it stands

  constructor(id) {
    this.id = id;
  }

  /** @returns {object} the new item */
  add(item) {
    item.n = this.#next++;
    this.items.push(item);
    this.changed.add(item);
    if (item.kind === "mark") this.mark = item;
    if (this.items.length > MAX_ITEMS) this.#forget(MAX_ITEMS / 4);
    return item;
  }

  /** Put items before all others: `n` is below theirs. */
  #prepend(items) {
    const first = this.items[0]?.n ?? this.#next;
    items.forEach((item, at) => (item.n = first - items.length + at));
    this.items.unshift(...items);
  }

  /** The first event is the beginning if it says so, or nothing is missing before it. */
  begin(event, isCut) {
    if (this.first !== null) return;
    this.first = String(event.event_id);
    this.isWhole = event.type === "session_created" || (!isCut && !this.#start);
  }

  /** Say that the beginning is not here, and why; null: it is here after all. @param {"removed" | "unknown" | null} reason */
  lack(reason) {
    if (!this.#start) this.#prepend([(this.#start = { kind: "start", reason })]);
    this.#start.reason = reason;
    this.isWhole ||= reason === null;
    this.changed.add(this.#start);
  }

  /** What home has of before; `more` messages before that are left out. */
  recall(items, more) {
    if (this.#start) this.changed.add(Object.assign(this.#start, { hasMessages: items.length > 0 }));
    const note = { kind: "note", text: `${more.toLocaleString()} earlier messages are only at home` };
    this.title ||= titled(items);
    this.said ??= items.findLast(({ kind }) => kind === "message") ?? null;
    this.#prepend(more ? [note, ...items] : items);
  }

  /** @param {object | undefined} metadata as home keeps it of the session */
  name(metadata) {
    if (typeof metadata !== "object" || metadata === null) return;
    this.named = typeof metadata.title === "string" ? metadata.title.trim().slice(0, 120) : "";
  }

  #forget(count) {
    this.items.splice(0, count + 1);
    this.past = null;
    this.#prepend([(this.#start = { kind: "start", reason: "dropped" })]);
    const first = this.items[0].n;
    for (const known of [this.#open, this.#tools, this.#requests]) {
      for (const [key, item] of known) if (item.n < first) known.delete(key);
    }
  }

  apply(event) {
    this.past?.take(event);
    this.name(event.session?.metadata);
    const handle = isWrapped(event) ? undefined : HANDLERS[event.type];
    if (handle) handle.call(this, event, event.request_id ?? "");
    else if (!SILENT.has(event.type)) this.other(event);
  }

  message(role, text, streaming = false) {
    if (role === "user" && !this.title) this.title = text.trim().slice(0, 120);
    return (this.said = this.add({ kind: "message", role, text, streaming }));
  }

  /** An event of a type that nobody here knows: its name, and what it says where events say something. */
  other(event) {
    const text = gistOf(event);
    const item = this.add({ kind: "other", type: String(event.type), event, text });
    if (text) this.said = item;
  }

  /** The message that this request's partials grow, begun if there is none. */
  growing(request) {
    let message = this.#open.get(request);
    if (!message) this.#open.set(request, (message = this.message("assistant", "", true)));
    return message;
  }

  grow(item, key, text) {
    if (!text) return;
    item[key] += text; // cheap while nobody reads it: only whoever draws it does
    if (item.kind === "message") this.said = item;
    this.changed.add(item);
  }

  /** No more partials for what this request was saying. */
  close(request) {
    const message = this.#open.get(request);
    this.#open.delete(request);
    if (message?.streaming) {
      message.streaming = false;
      this.changed.add(message);
    }
  }

  takeOpen(request) {
    const message = this.#open.get(request);
    this.close(request);
    return message;
  }

  tool(request, id, name = "") {
    const key = JSON.stringify([request, id]);
    let item = id === undefined ? undefined : this.#tools.get(key);
    if (!item) {
      item = this.add({ kind: "tool", request, name: name || "tool", args: "", output: "", result: null, state: "running" });
      if (id !== undefined) this.#tools.set(key, item);
    } else if (name) {
      item.name = name;
    }
    this.changed.add(item);
    return item;
  }

  toolResult(request, message, id = message?.metadata?.tool_call_id) {
    const item = this.tool(request, id, message?.metadata?.tool_name);
    item.result = said(message);
    item.state = message?.metadata?.is_error === true ? "failed" : "done";
  }

  began(request) {
    this.working.add(request);
    this.failed = false;
    if (this.#requests.get(request)?.state !== "running") this.#requests.set(request, this.add({ kind: "request", state: "running" }));
  }

  /** Whether a person's answer is what the tool of an approval's event waits for. */
  asks(event, request, isAsking) {
    const id = event.tool_call?.id ?? event.tool_call?.tool_call_id;
    const item = this.#tools.get(JSON.stringify([request, id]));
    if (item?.state !== (isAsking ? "running" : "asking")) return;
    item.state = isAsking ? "asking" : "running";
    this.changed.add(item);
  }

  answered(event, request, word) {
    this.approvals.delete(event.approval_id);
    this.asks(event, request, false);
    this.add({ kind: "note", text: `${word}: ${calledTool(event.tool_call).name}` });
  }

  /** How a request ended stands behind all that it said. */
  ended(request, state) {
    this.working.delete(request);
    for (const [id, asked] of this.approvals) if (asked.request === request) this.approvals.delete(id);
    const open = this.takeOpen(request);
    if (open && state !== "completed") open.broken = true;
    for (const tool of this.#tools.values()) {
      if (tool.request !== request || !["running", "asking"].includes(tool.state)) continue;
      tool.state = "unanswered";
      this.changed.add(tool);
    }
    const item = this.#requests.get(request);
    if (item && item.state !== "running") {
      // Completed is said last even after a failure: what went wrong stays visible.
      if (state !== "completed") item.state = state;
      this.changed.add(item);
      return;
    }
    if (item) {
      item.state = "over";
      this.changed.add(item);
    }
    this.#requests.set(request, this.add({ kind: "request", state }));
  }
}
