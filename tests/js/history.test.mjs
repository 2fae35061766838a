// What came before the events held here: said, and shown from what home has, nothing twice and nothing left out.

import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./page.mjs";

const { explain, recall } = await load("history");
const { MAX_ITEMS, Transcript } = await load("transcript");
const { BridgeError } = await load("bridge");

const EPOCH = "e";
const user = (content) => ({ role: "user", content, metadata: {} });
const assistant = (content, metadata = {}) => ({ role: "assistant", content, metadata });
const CUT = { reason: "expired", from_id: "0", resume_after: "10" };

/** A home with `messages`, as they are at `cursor`; `asked` are the paths it was asked for. */
function home(messages, cursor, { gap = CUT, epoch = EPOCH, expired = true, first = null } = {}) {
  const one = {
    transcript: new Transcript(),
    state: { state: "online", caughtUp: true },
    epoch,
    gap: null,
    asked: [],
    reached: async () => {},
    async request(_method, path) {
      one.asked.push(path);
      const [where, query] = path.split("?");
      const asked = new URLSearchParams(query);
      if (one.state.state !== "online") throw new BridgeError("server_offline", "away");
      if (where.endsWith("/events")) {
        const events = first === null ? [] : [{ sequence_number: 1, event: { event_id: first } }];
        return { ok: true, status: 200, body: { events, epoch: EPOCH, ...(expired ? { expired, floor: 10 } : {}) } };
      }
      if (!messages) return { ok: false, status: 404, body: { error: { code: "no_such_session" } } };
      const expected = asked.get("expected_cursor_event_id");
      if (expected !== null && expected !== cursor) return { ok: false, status: 409, body: {} };
      const offset = Number(asked.get("offset"));
      const from = offset < 0 ? Math.max(0, messages.length + offset) : offset;
      const page = messages.slice(from, from + Number(asked.get("limit")));
      return { ok: true, status: 200, body: { messages: page, message_count: messages.length, cursor_event_id: cursor, epoch: EPOCH } };
    },
  };
  if (gap) one.transcript.gap(gap);
  let id = 10;
  one.tell = (event) => one.transcript.apply({ event_id: String(++id), session_id: "s", ...event });
  one.appended = (message, count) => one.tell({ type: "message_appended", ...message, message, session: { message_count: count } });
  one.rows = () => one.transcript.session("s").items.map((item) => item.text ?? item.result ?? item.reason ?? item.kind);
  one.recall = () => recall(one, "s", () => {});
  return one;
}

test("a session that begins in the middle says so, and shows what home has of before, once", async () => {
  const one = home([user("a"), assistant("b"), user("c"), assistant("d")], "12");
  one.appended(user("c"), 3);
  one.tell({ type: "final", request_id: "r", messages: [assistant("d")] });
  await one.recall();
  await one.recall();
  assert.deepEqual(one.rows(), ["a", "b", "removed", "c", "d"]);
  const { items } = one.transcript.session("s");
  assert.ok(items[2].hasMessages);
  assert.ok(items.every((item, index) => item.n === items[0].n + index));
  assert.equal(one.asked.length, 3);
});

test("what was told of a request before the first change is not shown twice, and what is not sure is shown", async () => {
  const call = { id: "1", function: { name: "look", arguments: "{}" } };
  const result = { role: "tool", content: "sky", metadata: { tool_call_id: "1", tool_name: "look" } };
  const history = [user("a"), assistant("", { tool_calls: [call] }), result, assistant("blue")];
  const one = home(history, "13");
  one.tell({ type: "tool_calls", request_id: "r", tool_calls: [call] });
  one.tell({ type: "tool_results", request_id: "r", messages: [result] });
  one.tell({ type: "final", request_id: "r", messages: [assistant("blue")] });
  await one.recall();
  assert.deepEqual(one.rows(), ["a", "removed", "sky", "blue"]);
  const other = home(history, "13");
  other.tell({ type: "final", request_id: "r", messages: [assistant("another program's")] });
  await other.recall();
  assert.deepEqual(other.rows(), ["a", "sky", "blue", "removed", "another program's"]);
});

test("messages deleted and changed since are where they were", async () => {
  const one = home([user("b"), user("C"), user("d")], "13"); // was a, b, c
  one.appended(user("d"), 4);
  one.tell({ type: "message_modified", index: 2, content: "C", session: { message_count: 4 } });
  one.tell({ type: "messages_deleted", indices: [0], session: { message_count: 3 } });
  one.tell({ type: "messages_deleted", indices: [0], session: { message_count: 2 } }); // behind home's cursor
  await one.recall();
  assert.deepEqual(one.rows().slice(0, 4), ["b", "C", "removed", "d"]);
});

test("a session of which no event is held is its messages, the last thousand of them", async () => {
  const one = home(Array.from({ length: 1500 }, (_, n) => user(`m${n}`)), "9");
  one.transcript.list([{ session_id: "s", cursor_event_id: "9", metadata: {} }]);
  await one.recall();
  const rows = one.rows();
  assert.equal(rows.length, 1002);
  assert.deepEqual([rows[0], rows[1], rows[1000], rows[1001]], [`${(500).toLocaleString()} earlier messages are only at home`, "m500", "m1499", "removed"]);
  one.appended(user("live"), 1501);
  assert.equal(one.rows().at(-1), "live");
});

test("while home can't be asked there are the words alone, and when it is back its messages", async () => {
  const one = home([user("a"), user("b")], "11");
  one.appended(user("b"), 2);
  one.state = { state: "waiting", caughtUp: true };
  await one.recall();
  assert.deepEqual(one.rows(), ["unknown", "b"]);
  one.state = { state: "online", caughtUp: true };
  await one.recall();
  assert.deepEqual(one.rows(), ["a", "removed", "b"]);
  const watched = home(null, "0");
  watched.tell({ type: "note", content: "x" });
  await watched.recall();
  assert.deepEqual(watched.rows(), ["removed", "x"]);
});

test("what begins here says nothing: it was made here, nothing is missing, or home has no event before", async () => {
  const made = home([user("a")], "12");
  made.tell({ type: "session_created", session: { message_count: 0 } });
  const uncut = home([user("a")], "12", { gap: null });
  uncut.tell({ type: "note", content: "x" });
  for (const one of [made, uncut]) {
    await one.recall();
    assert.deepEqual(one.asked, []);
  }
  const first = home(null, "0", { expired: false, first: "11" });
  first.tell({ type: "note", content: "x" });
  await first.recall();
  assert.ok(first.transcript.session("s").isWhole);
  assert.equal(first.transcript.session("s").items[0].reason, null);
});

test("another store's messages are not put before this one's events, and a history that keeps changing is left alone", async () => {
  const one = home([user("a"), user("b")], "11", { epoch: "another" });
  one.appended(user("b"), 2);
  await one.recall();
  assert.deepEqual(one.rows(), ["unknown", "b"]);
  const replaced = home([user("a"), user("b")], "11");
  replaced.appended(user("b"), 2);
  replaced.transcript.gap({ reason: "epoch_changed", from_id: "11", resume_after: "0" });
  await replaced.recall();
  assert.deepEqual(replaced.rows().slice(0, 2), ["removed", "b"]);
});

test("a fork shows what it copied, from its event or else from home, before what was done to it", async () => {
  const created = { type: "session_created", source_session_id: "garden" };
  const whole = home([], "0");
  whole.tell({ ...created, session: { message_count: 2, messages: [user("a"), assistant("b")], metadata: {} } });
  whole.tell({ type: "message_modified", index: 0, content: "A", session: { message_count: 2 } });
  await whole.recall();
  assert.deepEqual(whole.rows(), ["a", "b", "Session begun as a copy of garden", "Message 1 was changed to: A"]);
  assert.deepEqual([whole.transcript.session("s").title, whole.transcript.session("s").said.text], ["a", "b"]);
  const long = home([user("a"), assistant("b"), user("c")], "13");
  long.tell({ ...created, session: { message_count: 2, messages_omitted: true, metadata: {} } });
  long.appended(user("c"), 3);
  await long.recall();
  assert.deepEqual(long.rows(), ["a", "b", "Session begun as a copy of garden, whose messages are at home", "c"]);
});

test("of what did not fit into the page it says so", () => {
  const transcript = new Transcript();
  for (let n = 0; n < MAX_ITEMS + 1; n++) transcript.apply({ type: "odd", session_id: "s", n });
  assert.deepEqual([transcript.session("s").items[0].kind, transcript.session("s").items[0].reason], ["start", "dropped"]);
});

test("home is asked whether it removed what is missing; without an answer nobody is blamed", async () => {
  const gap = { reason: "expired", from_id: "3", resume_after: "10" };
  for (const [expired, state] of [[true, "online"], [false, "online"], [undefined, "waiting"]]) {
    const one = home([], "0", { gap: null, expired });
    one.tell({ type: "note", content: "x" });
    one.gap = { ...gap };
    one.transcript.gap(one.gap);
    one.state.state = state;
    await explain(one, () => {});
    assert.equal(one.gap.isRemoved, expired);
    assert.equal(one.transcript.session("s").items.at(-1).isRemoved ?? false, expired === true);
  }
});

test("home's name of a session is its title, until it has none", () => {
  const one = home([], "0", { gap: null });
  one.tell({ type: "session_created", session: { metadata: { title: " Roses " } } });
  assert.equal(one.transcript.session("s").named, "Roses");
  one.appended(user("x"), 1);
  assert.equal(one.transcript.session("s").named, "Roses", "an event that says nothing of it changes nothing");
  one.transcript.list([{ session_id: "s", cursor_event_id: "1", metadata: {} }]);
  assert.equal(one.transcript.session("s").named, "");
});
