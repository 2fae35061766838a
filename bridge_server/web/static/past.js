/**
 * What came before the events of a session that are held here: how many of the messages that home has of it the events
 * do not show, and how a message of a history reads. Pure: no DOM, no clock, no network.
 *
 * @module past
 */

import { list, pretty, said, textOf } from "./texts.js";

const MOST = 1000; // of what is remembered to compare with; the oldest go
const CHANGES = new Set(["session_created", "message_appended", "message_modified", "messages_deleted"]);

/** Of one session: takes its events in order, whatever they are. */
export class Past {
  #before = null; // how many messages there were before the first change held here; null: none is
  #deletions = []; // of the changes since: {id, indices}
  #told = []; // the messages told before the first change, in order: {role, text}

  /** @param {object} event */
  take(event) {
    const count = event.session?.message_count;
    if (CHANGES.has(event.type) && Number.isInteger(count)) this.#change(event, count);
    else if (this.#before === null) this.#tell(event);
  }

  #change(event, count) {
    const indices = event.type === "messages_deleted" ? list(event.indices).filter(Number.isInteger) : [];
    this.#before ??= count + indices.length - (event.type === "message_appended" ? 1 : 0);
    if (indices.length) this.#deletions.push({ id: Number(event.event_id), indices });
    if (this.#deletions.length > MOST) this.#before = without(this.#before, this.#deletions.shift());
  }

  /** As home makes messages of what a request tells: calls of tools stand with what was said before them. */
  #tell(event) {
    if (event.type === "final" || event.type === "tool_results") {
      for (const message of list(event.messages)) this.#told.push({ role: message?.role ?? "assistant", text: said(message) });
    } else if (event.type === "tool_calls" && this.#told.at(-1)?.role !== "assistant") {
      this.#told.push({ role: "assistant", text: "" });
    }
    this.#told.splice(0, this.#told.length - MOST);
  }

  /**
   * How many messages lie before the events held here, of a history of `count` messages as it is at `cursor`: what
   * changes behind that cursor is not in it yet. What was told before the first change is among them, see `unseen`.
   */
  length(count, cursor) {
    const kept = this.#deletions.filter(({ id }) => id <= cursor).reduce(without, this.#before ?? count);
    return Math.max(0, Math.min(kept, count));
  }

  /** How many of `messages`, the last ones of that length, no event here shows. What is not sure is not seen. */
  unseen(messages) {
    let end = messages.length;
    for (const { role, text } of [...this.#told].reverse()) {
      const message = messages[end - 1];
      if (!message || message.role !== role || (text && said(message) !== text)) break;
      end -= 1;
    }
    return end;
  }
}

const without = (count, { indices }) => count - indices.filter((index) => index < count).length;

/** The items of a history's messages (transcript.js), without numbers. @param {object[]} messages */
export function itemsOf(messages) {
  const items = [];
  const calls = new Map(); // by id, the last one of that id
  const add = (item) => (items.push(item), item);
  const tool = (id, name, args) => {
    const item = add({ kind: "tool", name: textOf(name) || "tool", args, output: "", result: null, state: "unanswered" });
    if (id !== undefined) calls.set(id, item);
    return item;
  };
  for (const message of list(messages)) {
    const { tool_calls, tool_call_id: id, tool_name: name, is_error: isError } = message?.metadata ?? {};
    if (message?.role === "tool") {
      const item = calls.get(id) ?? tool(id, name, "");
      calls.delete(id); // models number their calls anew
      Object.assign(item, { result: said(message), state: isError === true ? "failed" : "done" });
      continue;
    }
    const text = said(message);
    if (text) add({ kind: "message", role: message?.role ?? "assistant", text, streaming: false });
    for (const call of list(tool_calls)) tool(call?.id ?? call?.tool_call_id, call?.function?.name, pretty(call?.function?.arguments));
  }
  return items;
}

/** What a session that begins with these items is called. */
export const titled = (items) => items.find(({ kind, role }) => kind === "message" && role === "user")?.text.trim().slice(0, 120) ?? "";
