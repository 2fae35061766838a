/**
 * What each type of event does to a session as it is read here. Pure.
 *
 * @module vocabulary
 */

import { itemsOf, titled } from "./past.js";
import { calledTool, list, pretty, said, textOf } from "./texts.js";

const GIST = 400; // characters of what an unknown event says

// `bridge-client watch` looks in the same places (bridge_client/transcript.py).
const SAYS = ["text", "delta", "content", "part", "message", "body", "title", "summary", "error", "reason", "tool", "tool_name", "name"];
const INSIDE = ["display", "data", "payload", "message", "messages", "result", "tool_calls", "function", "delta", "content", "notification", "error"];
const DEEPEST = 4;

// No prototype, here and below: a type or status is a stranger's word, and may be "constructor".
/** By type, what an event does to its session, which is `this`: `(event, request)`. */
export const HANDLERS = {
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
    const items = itemsOf(event.session?.messages);
    for (const item of items) this.add(item);
    this.title ||= titled(items);
    this.said = items.findLast(({ kind }) => kind === "message") ?? this.said;
    this.isCopy = Boolean(from) && !items.length && event.session?.message_count > 0;
    const others = this.isCopy ? ", whose messages are at home" : "";
    this.add({ kind: "note", text: from ? `Session begun as a copy of ${textOf(from)}${others}` : "Session begun" });
  },
  unforwardable(event) {
    this.add({ kind: "note", text: `An event could not be relayed: ${textOf(event.reason) || "unknown reason"}` });
  },
};

/** As `bridge-client ingest` keeps what others wrote: the type is a stranger's word, and what it says is in `data`. */
export function isWrapped({ event_id: _id, type: _type, session_id: _session, data, ...more }) {
  return typeof data === "object" && data !== null && !Object.keys(more).length;
}

/** What an event of an unknown type says, in a line. */
export const gistOf = (event) => [...gist(event)].join(" ").slice(0, GIST);

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
