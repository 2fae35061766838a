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
import { said, textOf } from "./texts.js";

export const MAX_ITEMS = 20_000; // per session; the oldest quarter goes when it is exceeded

const NOTIFICATION = /^(application|session)_notification_(created|updated|resolved|dismissed|expired)$/;
const GIST = 400; // characters of what an unknown event says

// `bridge-client watch` looks in the same places (bridge_client/transcript.py).
const SAYS = ["text", "delta", "content", "part", "message", "body", "title", "summary", "error", "reason", "tool", "tool_name", "name"];
const INSIDE = ["display", "data", "payload", "message", "messages", "result", "tool_calls", "function", "delta", "content", "notification", "error"];
const DEEPEST = 4;

const SILENT = new Set(["checkpoint", "session_checkpoint"]);

/** One home. `notices` are its notifications that belong to no session. */
export class Transcript {
  /** @type {Map<string, Session>} */
  sessions = new Map();
  notices = new Notices("application");
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
    if (kind) session.notices.apply(event, kind[2]);
    else session.apply(event);
    return session;
  }

  /** @param {string} id @returns {Session} */
  session(id) {
    if (!this.sessions.has(id)) this.sessions.set(id, new Session(id));
    return this.sessions.get(id);
  }

  /** Say in every session that has begun that something is missing here. @param {object} gap @returns {Session[]} */
  gap(gap) {
    const begun = [...this.sessions.values()].filter((session) => session.items.length);
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
 * other (type, event, text), gap (reason), mark.
 */
export class Session {
  items = [];
  changed = new Set();
  notices = new Notices("session");
  working = new Set(); // request ids
  approvals = new Map(); // by id: what a request asks before it goes on, {id, request, name, args}
  touched = 0;
  title = "";
  said = null; // the item that said something last
  failed = false;
  mark = null; // where this visit began, once something came
  #next = 0;
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

  #forget(count) {
    this.items.splice(0, count);
    const first = this.items[0].n;
    for (const known of [this.#open, this.#tools, this.#requests]) {
      for (const [key, item] of known) if (item.n < first) known.delete(key);
    }
  }

  apply(event) {
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
    const text = [...gist(event)].join(" ").slice(0, GIST);
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

// No prototype, here and below: a type or status is a stranger's word, and may be "constructor".
const HANDLERS = {
  __proto__: null,
  request_started(_event, request) {
    this.began(request);
  },
  request_completed(_event, request) {
    this.ended(request, "completed");
  },
  request_cancelled(_event, request) {
    this.ended(request, "cancelled");
  },
  error(event, request) {
    this.failed = true;
    const text = textOf(event.detail ?? event.message ?? event.error) || "something failed";
    this.said = this.add({ kind: "error", text, printed: textOf(event.provider_error?.stderr) });
    if (request) this.ended(request, "failed");
  },
  error_occurred(event) {
    const { error_message: text, fatal } = event.data ?? {};
    if (typeof text !== "string" || fatal !== false) this.other(event);
    else this.add({ kind: "warning", text });
  },
  token_usage_updated(event) {
    const { input_tokens: input, output_tokens: output } = event.data ?? {};
    const counts = [[input, "in"], [output, "out"]].filter(([count]) => Number.isInteger(count));
    if (!counts.length) this.other(event);
    else this.add({ kind: "note", text: `Tokens: ${counts.map(([count, way]) => `${count.toLocaleString()} ${way}`).join(", ")}` });
  },
  turn_completed() {},
  assistant_message(event, request) {
    if (event.phase === "start") this.close(request);
  },
  partial(event, request) {
    this.grow(this.growing(request), "text", textOf(event.message?.content ?? event.content ?? event.data ?? ""));
  },
  final(event, request) {
    let open = this.takeOpen(request);
    for (const message of list(event.messages)) {
      if (message?.role === "tool") {
        this.toolResult(request, message);
      } else if (open && (message?.role ?? "assistant") === "assistant") {
        open.text = said(message) || open.text;
        this.said = open;
        this.changed.add(open);
        open = undefined;
      } else if (said(message)) {
        this.message(message?.role ?? "assistant", said(message));
      }
    }
  },
  tool_calls(event, request) {
    this.close(request);
    for (const call of list(event.tool_calls)) {
      this.tool(request, call?.id ?? call?.tool_call_id, call?.function?.name).args = pretty(call?.function?.arguments);
    }
  },
  tool_approval_requested(event, request) {
    this.asks(event, request, true);
    const { name, args } = calledTool(event.tool_call);
    if (typeof event.approval_id !== "string" || !request) {
      this.add({ kind: "note", text: `Asks at home, where the agent runs: may it use ${name}?` });
      return;
    }
    this.approvals.set(event.approval_id, { id: event.approval_id, request, name, args });
  },
  tool_approval_granted(event, request) {
    this.answered(event, request, "Allowed");
  },
  tool_approval_denied(event, request) {
    this.answered(event, request, "Not allowed");
  },
  tool_partial(event, request) {
    const { phase, payload } = event;
    if (phase === "end" && payload?.result) this.toolResult(request, payload.result, event.tool_call_id);
    else this.grow(this.tool(request, event.tool_call_id), "output", textOf(payload?.part ?? ""));
  },
  tool_results(event, request) {
    for (const message of list(event.messages)) {
      if (message?.metadata?.tool_call_id !== undefined) this.toolResult(request, message);
      else this.message(message?.role ?? "tool", said(message));
    }
  },
  message_appended(event) {
    const text = said(event.message ?? event) || said(event);
    if (text) this.message(event.role ?? event.message?.role ?? "user", text);
  },
  message_modified(event) {
    this.add({ kind: "note", text: `Message ${Number(event.index) + 1} was changed to: ${textOf(event.content)}` });
  },
  messages_deleted(event) {
    const count = list(event.indices).length;
    this.add({ kind: "note", text: count === 1 ? "A message was deleted" : `${count} messages were deleted` });
  },
  session_created(event) {
    const title = event.session?.title ?? event.session?.name;
    if (typeof title === "string") this.title ||= title.slice(0, 120);
    const from = event.source_session_id;
    this.add({ kind: "note", text: from ? `Session begun as a copy of ${textOf(from)}` : "Session begun" });
  },
  unforwardable(event) {
    this.add({ kind: "note", text: `An event could not be relayed: ${textOf(event.reason) || "unknown reason"}` });
  },
};

/** As `bridge-client ingest` keeps what others wrote: the type is a stranger's word, and what it says is in `data`. */
function isWrapped({ event_id: _id, type: _type, session_id: _session, data, ...more }) {
  return typeof data === "object" && data !== null && !Object.keys(more).length;
}

const list = (value) => (Array.isArray(value) ? value : []);

/** The first texts in a value of any shape, where events keep what they say. */
function* gist(value, depth = 0) {
  if (typeof value === "string") yield value.slice(0, GIST);
  else if (typeof value !== "object" || value === null || depth === DEEPEST) return;
  else if (Array.isArray(value)) for (const part of value.slice(0, 8)) yield* gist(part, depth + 1);
  else {
    const own = (key) => (Object.hasOwn(value, key) ? value[key] : undefined);
    const texts = SAYS.map(own).filter((text) => typeof text === "string" && text);
    if (texts.length) return yield* texts.slice(0, 2).map((text) => text.slice(0, GIST));
    for (const key of INSIDE) {
      const found = [...gist(own(key), depth + 1)];
      if (found.length) return yield* found;
    }
  }
}

/** What a tool call says it is: bare, or inside `function`. */
function calledTool(call) {
  const called = call?.function ?? call ?? {};
  const name = textOf(called.name ?? call?.tool_name) || "a tool";
  return { name, args: pretty(called.arguments ?? called.input) };
}

function pretty(text) {
  if (typeof text !== "string") return text === undefined ? "" : JSON.stringify(text, null, 2);
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still a fragment, or not JSON at all
  }
}
