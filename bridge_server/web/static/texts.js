/**
 * The text in what events and messages hold. Pure.
 *
 * @module texts
 */

/** What a message says to a reader: `metadata.display` of type text, else its content. */
export function said(message) {
  const display = message?.metadata?.display;
  return display?.type === "text" && typeof display.content === "string" ? display.content : textOf(message?.content);
}

/** The text in a content of any shape: a string, parts, or whatever else, as JSON. */
export function textOf(value) {
  if (typeof value === "string") return value;
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map(textOf).join("");
  if (typeof value === "object" && typeof value.text === "string") return value.text;
  if (typeof value === "object" && "content" in value) return textOf(value.content);
  return JSON.stringify(value);
}

export const list = (value) => (Array.isArray(value) ? value : []);

/** What a tool is asked, for people: JSON in a string is laid out. */
export function pretty(text) {
  if (typeof text !== "string") return text === undefined ? "" : JSON.stringify(text, null, 2);
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still a fragment, or not JSON at all
  }
}

/** What a tool call says it is: bare, or inside `function`. */
export function calledTool(call) {
  const called = call?.function ?? call ?? {};
  const name = textOf(called.name ?? call?.tool_name) || "a tool";
  return { name, args: pretty(called.arguments ?? called.input) };
}
