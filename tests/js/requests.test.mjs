// Requests of the app client against a scripted hub: asked once per connection, answered once, told truly.

import assert from "node:assert/strict";
import { test } from "node:test";
import { joined, ONLINE, recovered, settled } from "./world.mjs";

const ANSWER = { status: 202, headers: { "content-type": "application/json" }, body: { request_id: "r" } };

const asked = (socket) => socket.sent.filter((frame) => frame[3] === "request");
const answer = (socket, response = ANSWER, status = "ok", at = -1) => socket.replyTo(asked(socket).at(at), response, status);

const refused = (promise) => promise.then(() => assert.fail("it was answered"), (error) => error);

test("a request is one message on the app's topic, and its reply the answer", async () => {
  const { bridge, socket } = await joined();
  const answered = bridge.request("POST", "/sessions/s/send", { content: "hi" }, { id: "request-0001" });
  const [[joinRef, , topic, event, payload], ...more] = asked(socket);
  assert.deepEqual(more, []);
  assert.deepEqual([joinRef, topic, event], [socket.join[0], "app:home", "request"]);
  assert.deepEqual(payload, { id: "request-0001", method: "POST", path: "/sessions/s/send", body: { content: "hi" } });
  answer(socket);
  assert.deepEqual(await answered, { id: "request-0001", ok: true, ...ANSWER });
});

test("an error of the home is an answer; ids are made where none is given, and differ", async () => {
  const { bridge, socket } = await joined();
  const answers = [bridge.request("GET", "/sessions/a"), bridge.request("GET", "/sessions/b")];
  const [first, second] = asked(socket).map((frame) => frame[4]);
  assert.match(first.id, /^[A-Za-z0-9_-]{22}$/);
  assert.notEqual(first.id, second.id);
  assert.ok(!("body" in first));
  answer(socket, { status: 404, headers: {}, body: { error: { code: "no_such_session" } } }, "ok", 0);
  answer(socket, { status: 200, headers: {}, body: null }, "ok", 1);
  const [one, two] = await Promise.all(answers);
  assert.deepEqual([one.ok, one.status, one.body.error.code], [false, 404, "no_such_session"]);
  assert.deepEqual([two.ok, two.body], [true, null]);
});

test("a refusal says why, when to come back, and whether it may have been done", async () => {
  const { bridge, socket } = await joined();
  for (const [response, code, retry, sent] of [
    [{ reason: "forbidden", message: "no", scope: "control" }, "forbidden", null, false],
    [{ reason: "rate_limited", retry_after_ms: 7 }, "rate_limited", 7, false],
    [{ reason: "server_offline", sent: false }, "server_offline", null, false],
    [{ reason: "server_offline", sent: true }, "server_offline", null, true],
    [{ reason: "timeout" }, "timeout", null, true],
  ]) {
    const failed = refused(bridge.request("POST", "/sessions", {}));
    answer(socket, response, "error");
    const error = await failed;
    assert.deepEqual([error.code, error.retryAfterMs, error.sent], [code, retry, sent]);
    assert.match(error.id, /^[A-Za-z0-9_-]{22}$/);
  }
});

test("after a lost connection it is asked again, with the same id, and answered once", async () => {
  const { world, bridge, socket } = await joined();
  const answered = bridge.request("POST", "/sessions/s/send", { content: "hi" });
  const [, , , , payload] = asked(socket)[0];
  socket.fail();
  await world.pass(1000);
  assert.notEqual(world.socket, socket);
  world.socket.open();
  assert.deepEqual(asked(world.socket), []); // not before the join was answered
  world.socket.reply(recovered());
  assert.deepEqual(asked(world.socket)[0][4], payload);
  answer(world.socket);
  assert.equal((await answered).status, 202);
});

test("asked before the join was answered, it waits for it; after a phx_error too", async () => {
  const { world, bridge, socket } = await joined({}, recovered({ server: ONLINE }));
  socket.push("phx_error", { reason: "hub_reset" });
  const answered = bridge.request("GET", "/sessions");
  assert.deepEqual(asked(socket), []);
  await world.pass(1000);
  socket.reply(recovered());
  assert.equal(asked(socket).length, 1);
  answer(socket);
  assert.equal((await answered).status, 202);
});

test("what nobody answers is given up, and a late answer is passed over", async () => {
  const { world, bridge, socket } = await joined();
  const failed = refused(bridge.request("POST", "/sessions", {}, { timeout: 5000 }));
  await world.pass(5000);
  const error = await failed;
  assert.deepEqual([error.code, error.sent], ["timeout", true]);
  answer(socket);
  assert.equal(world.socket, socket);
});

test("a large answer comes in parts", async () => {
  const { bridge, socket } = await joined();
  const answered = bridge.request("GET", "/sessions", null, { id: "request-0001" });
  for (const [index, text] of ['{"a":"é', '","b":[1]}'].entries()) socket.push("body_part", { id: "request-0001", index, text });
  answer(socket, { status: 200, headers: {}, parts: 2 });
  assert.deepEqual((await answered).body, { a: "é", b: [1] });
  const failed = refused(bridge.request("GET", "/sessions", null, { id: "request-0002" }));
  socket.push("body_part", { id: "request-0002", index: 1, text: "x" });
  answer(socket, { status: 200, headers: {}, parts: 2 });
  assert.equal((await failed).code, "bad_answer");
});

test("stopping ends what waits; afterwards nothing is asked", async () => {
  const { bridge, socket } = await joined();
  const failed = refused(bridge.request("GET", "/sessions"));
  bridge.stop();
  assert.equal((await failed).code, "closed");
  assert.equal((await refused(bridge.request("GET", "/sessions"))).code, "closed");
  assert.equal(asked(socket).length, 1);
  await settled();
});

test("a body over the limit and an id in use never leave", async () => {
  const { bridge, socket } = await joined();
  assert.equal((await refused(bridge.request("POST", "/sessions", { text: "é".repeat(200_000) }))).code, "too_large");
  const answered = bridge.request("GET", "/sessions", null, { id: "request-0001" });
  assert.equal((await refused(bridge.request("GET", "/events", null, { id: "request-0001" }))).code, "in_flight");
  assert.equal(asked(socket).length, 1);
  answer(socket);
  await answered;
});
