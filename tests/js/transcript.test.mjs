// What the events of a session add up to for a reader.

import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./page.mjs";

const { MAX_ITEMS, Transcript } = await load("transcript");
const { said } = await load("texts");

const R = { session_id: "s", request_id: "r" };
const partial = (content, more = {}) => ({ type: "partial", ...R, message: { role: "assistant", content }, ...more });
const final = (...messages) => ({ type: "final", ...R, messages });
const tool = (id, content, metadata = {}) => ({ role: "tool", content, metadata: { tool_call_id: id, tool_name: "look", ...metadata } });

function items(...events) {
  const transcript = new Transcript();
  for (const event of events) transcript.apply(event);
  return transcript.session("s").items;
}

const brief = (all) => all.map((item) => [item.kind, item.text ?? item.result ?? item.state ?? item.type]);

test("A51 A54 partials grow one message, and the final takes its place", () => {
  const growing = items(partial("Hel"), partial("lo"));
  assert.deepEqual(brief(growing), [["message", "Hello"]]);
  assert.ok(growing[0].streaming);
  const ended = items(partial("Hel"), partial("lo"), final({ role: "assistant", content: "Hello." }));
  assert.deepEqual(brief(ended), [["message", "Hello."]]);
  assert.ok(!ended[0].streaming);
});

test("A32 partials of different requests never mix, even interleaved", () => {
  const all = items(partial("a"), partial("x", { request_id: "q" }), partial("b"), partial("y", { request_id: "q" }));
  assert.deepEqual(brief(all), [["message", "ab"], ["message", "xy"]]);
});

test("A50 each phase is a message of its own", () => {
  const phase = (phase) => ({ type: "assistant_message", ...R, phase });
  const one = [phase("start"), partial("one"), phase("end"), final({ role: "assistant", content: "one" })];
  assert.deepEqual(brief(items(...one, phase("start"), partial("two"))), [["message", "one"], ["message", "two"]]);
});

test("A55 a final with several messages, and one without partials before it", () => {
  const all = items(final({ role: "assistant", content: "a" }, tool("t", "42"), { role: "system", content: "b" }));
  assert.deepEqual(brief(all), [["message", "a"], ["tool", "42"], ["message", "b"]]);
});

test("A60 A62 A65 A68 a tool call: arguments, partial output, result; either name of its id", () => {
  const [one, other, ...rest] = items(
    { type: "tool_calls", ...R, tool_calls: [{ id: "1", function: { name: "look", arguments: '{"at":"sky"}' } }, { tool_call_id: "2", function: { name: "read", arguments: "{bro" } }] },
    { type: "tool_partial", ...R, tool_call_id: "1", phase: "start", payload: { part: "a" } },
    { type: "tool_partial", ...R, tool_call_id: "1", phase: "stream", payload: { part: { text: "b" } } },
    { type: "tool_partial", ...R, tool_call_id: "2", phase: "end", payload: { result: tool("2", "read it") } },
  );
  assert.deepEqual([one.name, one.args, one.output, one.state], ["look", '{\n  "at": "sky"\n}', "ab", "running"]);
  assert.deepEqual([other.args, other.result, other.state], ["{bro", "read it", "done"]);
  assert.deepEqual(rest, []);
  const [summed] = items({ type: "tool_results", ...R, messages: [tool("9", "all of it")] });
  assert.deepEqual([summed.name, summed.result, summed.state], ["look", "all of it", "done"]);
});

test("A70 A71 A72 metadata.display of type text is shown instead of the content; other types are not", () => {
  assert.equal(said(tool("1", "full", { display: { type: "text", content: "short" } })), "short");
  assert.equal(said(tool("1", "full", { display: { type: "chart", content: "short" } })), "full");
  assert.equal(said({ content: [{ type: "text", text: "a" }, { type: "text", text: "b" }] }), "ab");
});

test("A42 A44 A45 A47 the state of a request: completed is said last even after a failure", () => {
  const started = { type: "request_started", ...R, stream: true };
  const completed = { type: "request_completed", ...R };
  assert.deepEqual(brief(items(started)), [["request", "running"]]);
  assert.deepEqual(brief(items(started, completed)), [["request", "over"], ["request", "completed"]]);
  assert.deepEqual(brief(items(started, { type: "request_cancelled", ...R }, completed)), [["request", "over"], ["request", "cancelled"]]);
  const failed = items(started, partial("Hel"), { type: "error", ...R, detail: "no power" }, completed);
  assert.deepEqual(brief(failed), [["request", "over"], ["message", "Hel"], ["error", "no power"], ["request", "failed"]]);
  assert.ok(!failed[1].streaming);
});

test("A42 A44 how a request ended stands behind its answer, whatever else goes on meanwhile", () => {
  const asked = (text) => ({ type: "message_appended", session_id: "s", role: "user", content: text });
  const [started, completed] = [{ type: "request_started", ...R }, { type: "request_completed", ...R }];
  const all = items(asked("Why?"), started, partial("Be"), final({ role: "assistant", content: "Because." }), completed, asked("And?"), { ...started, request_id: "q" });
  assert.deepEqual(brief(all), [["message", "Why?"], ["request", "over"], ["message", "Because."], ["request", "completed"], ["message", "And?"], ["request", "running"]]);
  const crossed = items(started, { ...started, request_id: "q" }, partial("a"), { ...completed, request_id: "q" }, completed);
  assert.deepEqual(brief(crossed).slice(2), [["message", "a"], ["request", "completed"], ["request", "completed"]]);
  assert.deepEqual(brief(items(completed)), [["request", "completed"]]); // begun before this page came
});

test("a tool that waits for a person's answer says so until it is given, or nothing more can come", () => {
  const tool_call = { id: "call_0", function: { name: "rm", arguments: "{}" } };
  const calls = [{ type: "tool_calls", ...R, tool_calls: [tool_call, { ...tool_call, id: "call_1" }] }];
  const asked = { type: "tool_approval_requested", ...R, approval_id: "q", tool_call };
  const states = (...events) => items(...calls, ...events).filter(({ kind }) => kind === "tool").map(({ state }) => state);
  assert.deepEqual(states(asked), ["asking", "running"]);
  assert.deepEqual(states({ ...asked, approval_id: undefined }), ["asking", "running"]); // answered where the agent runs
  for (const word of ["granted", "denied"]) {
    assert.deepEqual(states(asked, { ...asked, type: `tool_approval_${word}` }), ["running", "running"]);
  }
  const result = { type: "tool_results", ...R, messages: [tool("call_0", "gone")] };
  assert.deepEqual(states(asked, result), ["done", "running"]);
  assert.deepEqual(states(asked, result, { ...asked, type: "tool_approval_granted" }), ["done", "running"]); // told late
  assert.deepEqual(states(asked, { type: "request_completed", ...R }), ["unanswered", "unanswered"]);
  assert.deepEqual(states({ ...asked, request_id: "other" }, { ...asked, tool_call: null }), ["running", "running"]);
});

test("A62 a call's id is its request's own: the same id in the next request is another call", () => {
  const call = (request_id, name) => ({ type: "tool_calls", session_id: "s", request_id, tool_calls: [{ id: "call_0", function: { name, arguments: "{}" } }] });
  const done = (request_id, text) => ({ type: "tool_results", session_id: "s", request_id, messages: [tool("call_0", text)] });
  const growing = { type: "tool_partial", session_id: "s", request_id: "q", tool_call_id: "call_0", phase: "stream", payload: { part: "so far" } };
  const all = items(call("r", "look"), done("r", "saw it"), call("q", "read"), growing, { ...done("q", "read it"), type: "final" });
  assert.deepEqual(all.map((item) => [item.kind, item.output, item.result]), [["tool", "", "saw it"], ["tool", "so far", "read it"]]);
});

test("A84 checkpoints are not shown; lifecycle events are notes; unknown types are kept whole", () => {
  const odd = { type: "telemetry", session_id: "s", deep: { er: [1] } };
  const all = items(
    { type: "session_created", session_id: "s", session: { title: "Garden" } },
    { type: "checkpoint", ...R },
    { type: "message_appended", session_id: "s", role: "user", content: "Why?", message: { role: "user", content: "Why?" } },
    { type: "message_modified", session_id: "s", index: 0, content: "What?" },
    { type: "messages_deleted", session_id: "s", indices: [0, 1] },
    odd,
  );
  assert.deepEqual(all.map((item) => item.kind), ["note", "message", "note", "note", "other"]);
  assert.equal(all[2].text, "Message 1 was changed to: What?");
  assert.equal(all[4].event, odd);
});

test("what was ingested as it was is kept whole, whatever type it names", () => {
  const wrapped = ["final", "request_started", "note"].map((type) => ({ event_id: "1", type, session_id: "s", data: { type, content: "x" } }));
  assert.deepEqual(items(...wrapped).map((item) => [item.kind, item.type]), [["other", "final"], ["other", "request_started"], ["other", "note"]]);
});

test("what an unknown event says is found where watch finds it, and is the session's last word", () => {
  const transcript = new Transcript();
  const text = (event) => (transcript.apply({ session_id: "s", ...event }), transcript.session("s").items.at(-1).text);
  assert.equal(text({ type: "note", content: "hello" }), "hello");
  assert.equal(transcript.session("s").said.text, "hello");
  assert.equal(text({ type: "note", data: { type: "note", message: "below data" } }), "below data");
  assert.equal(text({ type: "item", data: { content: [{ text: "a" }, { text: "b" }] } }), "a b");
  assert.equal(text({ type: "long", content: "x".repeat(1e6) }).length, 400);
  assert.equal(text({ type: "silent", n: 1, deep: { a: { b: "no" } } }), "");
  assert.equal(transcript.session("s").said.text.length, 400);
});

test("A120 A121 A143 notifications are upserted by id and leave when they end; each kind has its own place", () => {
  const transcript = new Transcript();
  const note = (type, more, session_id) => transcript.apply({ type, session_id, notification: { id: "n", severity: "warning", title: "T", revision: 1, ...more } });
  note("session_notification_created", {}, "s");
  note("session_notification_updated", { title: "T2", revision: 2 }, "s");
  note("application_notification_created", { severity: "odd" });
  const [one] = transcript.session("s").notices.values();
  assert.deepEqual([one.title, one.severity, one.revision], ["T2", "warning", "2"]);
  assert.equal(transcript.session("s").items.length, 0);
  assert.equal([...transcript.notices.values()][0].severity, "info");
  note("session_notification_resolved", {}, "s");
  assert.equal(transcript.session("s").notices.size, 0);
  assert.equal(transcript.notices.size, 1);
});

test("a gap is marked in every session that has begun, and healed where it was told", () => {
  const transcript = new Transcript();
  transcript.apply(partial("a"));
  transcript.session("empty");
  assert.equal(transcript.gap({ reason: "hub_reset", from_id: "7" }).length, 1);
  assert.equal(transcript.session("s").items.at(-1).kind, "gap");
  assert.equal(transcript.heal("6").length, 0);
  assert.equal(transcript.heal("7").length, 1);
  assert.ok(transcript.session("s").items.at(-1).healed);
});

test("whatever an event holds, nothing is thrown", () => {
  const odd = [null, 7, "text", [], [null], {}, { content: null }, { content: { deep: [1] } }, [{ role: 7 }], [[]]];
  const types = ["partial", "final", "tool_calls", "tool_partial", "tool_results", "error", "assistant_message", "request_started",
    "message_appended", "message_modified", "messages_deleted", "session_created", "unforwardable", "session_notification_created",
    "application_notification_expired", "constructor", "__proto__", ""];
  for (const type of types) {
    for (const value of odd) {
      const event = { type, session_id: value, request_id: value };
      for (const key of ["message", "messages", "content", "tool_calls", "tool_call_id", "payload", "phase", "detail", "notification", "display", "session", "indices"]) event[key] = value;
      new Transcript().apply(event);
      new Transcript().apply({ type, [String(value)]: value, payload: { part: value, result: value }, phase: "end" });
    }
  }
});

test("a session is bounded: the oldest items go", () => {
  const transcript = new Transcript();
  for (let n = 0; n < MAX_ITEMS + 1; n++) transcript.apply({ type: "odd", session_id: "s", n });
  const kept = transcript.session("s").items;
  assert.equal(kept.length, (MAX_ITEMS * 3) / 4 + 1);
  assert.equal(kept.at(-1).event.n, MAX_ITEMS);
  assert.ok(kept.every((item, index) => item.n === kept[0].n + index));
});

test("a question stands until it is answered or its request ends; one that is asked elsewhere is a note", () => {
  const tool_call = { id: "c", function: { name: "rm", arguments: '{"path":"x"}' } };
  const asked = { type: "tool_approval_requested", ...R, approval_id: "q", tool_call };
  for (const end of [{ ...asked, type: "tool_approval_denied" }, { type: "request_completed", ...R }]) {
    const transcript = new Transcript();
    transcript.apply(asked);
    const { approvals } = transcript.session("s");
    assert.deepEqual([...approvals.values()], [{ id: "q", request: "r", name: "rm", args: '{\n  "path": "x"\n}' }]);
    transcript.apply(end);
    assert.equal(approvals.size, 0);
  }
  const { approval_id, ...elsewhere } = asked;
  assert.equal(approval_id, "q");
  assert.deepEqual(brief(items(elsewhere)), [["note", "Asks at home, where the agent runs: may it use rm?"]]);
});

test("a tool that failed says so, one whose request ended without its result too, and a reply that broke off", () => {
  const call = (id) => ({ type: "tool_calls", ...R, tool_calls: [{ id, function: { name: "look", arguments: "{}" } }] });
  const results = { type: "tool_results", ...R, messages: [tool("a", "no such file", { is_error: true })] };
  const ends = { type: "error", ...R, detail: "exited with status 1", provider_error: { stderr: "why" } };
  const all = items(call("a"), call("b"), results, partial("half an ans"), ends, { type: "request_completed", ...R });
  assert.deepEqual(all.map((item) => [item.kind, item.state]), [["tool", "failed"], ["tool", "unanswered"], ["message", undefined], ["error", undefined], ["request", "failed"]]);
  assert.ok(all[2].broken);
  assert.deepEqual([all[3].text, all[3].printed], ["exited with status 1", "why"]);
  assert.ok(!items(partial("all there was"), { type: "request_completed", ...R })[0].broken);
});

test("what a runner tells beside the conversation: a warning, the tokens; the end of a turn says nothing", () => {
  const told = (type, data) => ({ type, ...R, data, metadata: {} });
  const all = items(
    told("error_occurred", { error_message: "trying again", fatal: false }),
    told("token_usage_updated", { input_tokens: 5, output_tokens: 7 }),
    told("turn_completed", { stop_reason: "end_turn" }),
    told("token_usage_updated", { count: 1 }),
    told("error_occurred", { error_message: "of another vocabulary" }),
  );
  assert.deepEqual(brief(all).slice(0, 2), [["warning", "trying again"], ["note", "Tokens: 5 in, 7 out"]]);
  assert.deepEqual(all.slice(2).map((item) => [item.kind, item.type]), [["other", "token_usage_updated"], ["other", "error_occurred"]]);
});
