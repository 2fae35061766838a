// What a home can be asked for: never offered unless home has said so, and never taken back because nobody answered.

import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./page.mjs";

const { Capabilities } = await load("capabilities");
const { BridgeError } = await load("bridge");
const { Transcript } = await load("transcript");

const said = (text, session_id) => ({ type: "message_appended", session_id, role: "user", content: text });

/** A home that answers `answers[path]`: a status and a body, or the code of a failure. */
function home(answers, scopes = ["view", "control"]) {
  const one = {
    answers,
    asked: [],
    transcript: new Transcript(),
    state: { state: "online", caughtUp: true },
    may: (scope) => scopes.includes(scope),
    async request(method, path, body) {
      one.asked.push([method, path, ...(body ? [body] : [])]);
      const answer = one.answers[path.split("?")[0]] ?? [404, {}];
      if (typeof answer === "string") throw new BridgeError(answer, "said the hub");
      return { status: answer[0], ok: answer[0] < 300, body: answer[1] };
    },
  };
  one.capabilities = new Capabilities(one);
  one.of = (id) => one.capabilities.of(one.transcript.session(id));
  return one;
}

const LIST = { "/sessions": [200, { sessions: [], runner: "claude" }] };

test("a session takes messages where home has it, none where it is only watched, and none where there is none", async () => {
  const one = home({ ...LIST, "/sessions/own": [200, {}] });
  one.transcript.apply(said("x", "watched"));
  assert.deepEqual(["own", "watched", "fresh", ""].map(one.of), ["unknown", "unknown", "unknown", "reader"]);
  for (const id of ["own", "watched", "fresh"]) await one.capabilities.refresh(id);
  assert.deepEqual(["own", "watched", "fresh", ""].map(one.of), ["send", "watched", "absent", "reader"]);
  one.answers["/sessions/watched"] = [200, {}];
  await one.capabilities.made("watched");
  assert.equal(one.of("watched"), "send");
  assert.ok(one.capabilities.canBegin);
});

test("a session is not said to be none before it is known what happened", async () => {
  const one = home(LIST);
  one.state = { state: "online", caughtUp: false };
  await one.capabilities.refresh("s");
  assert.equal(one.of("s"), "unknown");
  one.state = { state: "online", caughtUp: true };
  assert.equal(one.of("s"), "absent");
  const id = one.capabilities.newSession();
  one.state = { state: "offline", caughtUp: false };
  assert.deepEqual([one.of("s"), one.of(id)], ["absent", "begin"], "who writes goes on writing while home is away");
  assert.ok(!one.capabilities.canBegin);
});

test("who answers: a runner, nobody, or what an older home does not say", async () => {
  const standing = async (body) => {
    const one = home({ "/sessions": [200, body], "/sessions/s": [200, {}] });
    await one.capabilities.refresh("s");
    return [one.of("s"), one.capabilities.canBegin];
  };
  assert.deepEqual(await standing({ runner: "claude" }), ["send", true]);
  assert.deepEqual(await standing({ runner: null }), ["unanswered", false]);
  assert.deepEqual(await standing({}), ["send", true]);
});

test("what is known stays when nobody answers; a home that takes no requests says so; other trouble is sending's to tell", async () => {
  const one = home({ ...LIST, "/sessions/s": [200, {}] });
  await one.capabilities.refresh("s");
  for (const code of ["server_offline", "closed"]) {
    one.answers = { "/sessions": code, "/sessions/s": code, "/sessions/t": code };
    for (const id of ["s", "t"]) await one.capabilities.refresh(id);
    assert.deepEqual([one.of("s"), one.of("t")], ["send", "unknown"]);
  }
  one.answers = { "/sessions": "unsupported", "/sessions/s": "unsupported" };
  await one.capabilities.refresh("s");
  assert.deepEqual([one.of("s"), one.capabilities.canBegin], ["closed", false]);
  const other = home({ "/sessions": "rate_limited", "/sessions/t": "rate_limited" });
  await other.capabilities.refresh("t");
  assert.equal(other.of("t"), "send");
  for (const no of ["bad_push", [400, {}]]) {
    const odd = home({ ...LIST, "/sessions/%2Fa%20file": no });
    odd.transcript.apply(said("x", "/a file"));
    await odd.capabilities.refresh("/a file");
    assert.equal(odd.of("/a file"), "watched", "an id that home would not take");
  }
});

test("a browser that may not write is told what there is, and offered nothing", async () => {
  const one = home({ ...LIST, "/sessions/s": [200, {}] }, ["view"]);
  for (const id of ["s", "none"]) await one.capabilities.refresh(id);
  assert.deepEqual([one.of("s"), one.of("none"), one.capabilities.canBegin], ["reader", "absent", false]);
  assert.ok(one.asked.every(([method]) => method === "GET"));
});

test("every session that home lists is known, page by page, whatever its size, up to a bound", async () => {
  const one = home({});
  const all = Array.from({ length: 1500 }, (_, n) => ({ session_id: `s${n}`, cursor_event_id: String(2000 - n), metadata: { title: `T${n}` } }));
  one.request = async (method, path) => {
    one.asked.push(path);
    const asked = new URLSearchParams(path.split("?")[1]);
    const limit = Number(asked.get("limit"));
    if (limit > 10) throw new BridgeError("too_large", "ask for less at a time");
    const rest = all.filter(({ cursor_event_id: at }) => Number(at) < Number(asked.get("before") ?? Infinity));
    const sessions = rest.slice(0, limit);
    return { status: 200, ok: true, body: { sessions, runner: "x", next_before: sessions.length === limit ? sessions.at(-1).cursor_event_id : null } };
  };
  await one.capabilities.refresh(null);
  assert.deepEqual(one.asked.slice(0, 3), ["/sessions?limit=100", "/sessions?limit=10", "/sessions?limit=10&before=1991"]);
  const listed = [...one.transcript.sessions.values()].filter((session) => session.listed !== null);
  assert.equal(listed.length, 1000);
  assert.deepEqual([listed[0].id, listed[0].named, one.of("s0")], ["s0", "T0", "send"]);
});

test("a session is made once, whatever becomes of the answer, and its events don't make it a watched one", async () => {
  const one = home(LIST);
  await one.capabilities.refresh(null);
  const id = one.capabilities.newSession();
  assert.match(id, /^[0-9a-f]{20}$/);
  assert.notEqual(id, one.capabilities.newSession());
  assert.equal(one.of(id), "begin");
  one.answers["/sessions"] = "timeout";
  await assert.rejects(one.capabilities.make(id), { code: "timeout" });
  one.transcript.apply({ type: "session_created", session_id: id });
  assert.equal(one.of(id), "begin", "home made it, and the answer was lost");
  one.answers["/sessions"] = [507, { error: { code: "too_many_sessions" } }];
  assert.equal((await one.capabilities.make(id)).ok, false);
  one.answers["/sessions"] = [409, { error: { code: "session_exists" } }];
  assert.equal((await one.capabilities.make(id)).ok, true);
  assert.equal(one.of(id), "send");
  assert.deepEqual(one.asked.at(-1), ["POST", "/sessions", { session_id: id }]);
});
