// The app client against a scripted hub, on virtual time: every rule of resuming, and what it says about itself.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  AWAY,
  BridgeError,
  CREDENTIAL,
  ONLINE,
  START,
  TOPIC,
  World,
  base64url,
  complete,
  gap,
  joined,
  me,
  recovered,
  redeem,
  settled,
} from "./world.mjs";

test("base64url without btoa equals the platform's", () => {
  for (const text of ["", "a", "ab", "abc", "abcd", "\0\x7f~?>", "sbd_-_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"]) {
    assert.equal(base64url(text), Buffer.from(text).toString("base64url"), text);
  }
  assert.throws(() => base64url("é"), TypeError);
});

test("it dials the socket with the credential as a subprotocol, and joins its own topic", async () => {
  const { socket } = await joined({ hubUrl: "https://hub.test/bridge/?x#y", sessionId: "s", types: ["final"] });
  assert.equal(socket.url, "wss://hub.test/bridge/socket/websocket?vsn=2.0.0");
  assert.deepEqual(socket.protocols, ["phoenix", `base64url.bearer.phx.${Buffer.from(CREDENTIAL).toString("base64url")}`]);
  assert.deepEqual(socket.sent, [["1", "1", TOPIC, "phx_join", { partials: "all", session_id: "s", types: ["final"] }]]);
});

test("without a cursor it starts at the head; with one it asks behind it", async () => {
  const { bridge } = await joined();
  assert.deepEqual(bridge.cursor, { epoch: "e1", id: "9" });
  const { socket, bridge: resumed } = await joined({ cursor: { epoch: "e1", id: "7" } });
  assert.equal(socket.join[4].since_id, "7");
  assert.equal(socket.join[4].epoch, "e1");
  assert.deepEqual(resumed.cursor, { epoch: "e1", id: "7" });
  const { socket: first } = await joined({ cursor: START });
  assert.equal(first.join[4].since_id, "0");
  assert.ok(!("epoch" in first.join[4]));
});

test("repeats are dropped, compared as numbers; a hidden event still moves the cursor", async () => {
  const { world, bridge, socket } = await joined({ cursor: { epoch: "e1", id: "8" } });
  for (const id of [9, 10, 9, 10, 11]) socket.event(id);
  assert.deepEqual(world.ids, ["9", "10", "11"]);
  socket.push("replay_complete", complete("15"));
  assert.deepEqual(bridge.cursor, { epoch: "e1", id: "15" });
  socket.event(12);
  socket.event(100);
  assert.deepEqual(world.ids, ["9", "10", "11", "100"]);
});

test("without a cursor, ids that go back are another epoch, not repeats", async () => {
  const { world, bridge, socket } = await joined();
  socket.event(10);
  socket.event(2);
  assert.deepEqual(world.ids, ["10", "2"]);
  assert.deepEqual(bridge.cursor, { epoch: null, id: "2" });
});

test("moved into another epoch, it asks with the cursor it has since, and is told what it misses there", async () => {
  const { world, bridge, socket } = await joined();
  socket.push("replay_complete", complete("9"));
  socket.event(10);
  socket.push("server_status", { ...ONLINE, epoch: "e2", head_id: "60" });
  socket.event(61);
  assert.deepEqual(world.ids, ["10"]);
  assert.equal(socket.joins.length, 1);
  await world.pass(10_000);
  assert.deepEqual([socket.join[4].epoch, socket.join[4].since_id], ["e1", "10"]);
  socket.reply(recovered({ epoch: "e2", head_id: "61", recovered: false, gap: gap("epoch_changed", "10", "58") }));
  assert.deepEqual(world.of("gap"), [gap("epoch_changed", "10", "58")]);
  assert.deepEqual([socket.join[4].epoch, socket.join[4].since_id], ["e2", "58"]);
  socket.reply(recovered({ epoch: "e2", head_id: "61" }));
  for (const id of [59, 60, 61]) socket.event(id);
  assert.deepEqual(world.ids, ["10", "59", "60", "61"]);
  assert.deepEqual(bridge.cursor, { epoch: "e2", id: "61" });
});

test("online is said only when the home is there and the verdict is known", async () => {
  const { world, bridge, socket } = await joined({ cursor: { epoch: "e1", id: "1" } }, recovered({ recovered: null, server: AWAY }));
  assert.deepEqual(world.states, ["connecting", "waiting"]);
  assert.equal(bridge.state.home.since, AWAY.since);
  socket.push("server_status", { online: true, since: ONLINE.since, last_event_at: null });
  assert.equal(bridge.state.state, "waiting");
  socket.event(2);
  socket.push("replay_complete", complete("2"));
  assert.deepEqual([bridge.state.state, bridge.state.caughtUp, bridge.state.home.name], ["online", true, "Attic"]);
  socket.push("server_status", { online: false, since: AWAY.since, last_event_at: null });
  assert.equal(bridge.state.state, "waiting");
  assert.deepEqual(world.of("status").map((status) => status.online), [false, true, false]);
});

test("a history that comes under an open verdict is of the epoch the hub names", async () => {
  const { world, bridge, socket } = await joined({ cursor: { epoch: null, id: "1" } }, recovered({ recovered: null }));
  assert.deepEqual(bridge.state.state, "waiting");
  socket.event(2);
  assert.deepEqual(bridge.cursor, { epoch: "e1", id: "2" });
  socket.push("replay_complete", complete("9"));
  assert.deepEqual([world.ids, bridge.cursor], [["2"], { epoch: "e1", id: "9" }]);
  const kept = await joined({ cursor: { epoch: "e0", id: "1" } }, recovered({ recovered: null }));
  kept.socket.event(2);
  assert.deepEqual(kept.bridge.cursor, { epoch: "e0", id: "2" });
});

test("a gap in the reply is told once, and what is retained is asked for", async () => {
  const { world, socket } = await joined(
    { cursor: { epoch: "e0", id: "500" } },
    recovered({ recovered: false, gap: gap("epoch_changed", "500", "3") }),
  );
  assert.deepEqual(world.of("gap"), [gap("epoch_changed", "500", "3")]);
  assert.deepEqual(socket.join[4], { partials: "all", since_id: "3", epoch: "e1" });
  socket.push("replay_complete", { ...complete("9"), recovered: false, gap: gap("epoch_changed", "500", "3") }, "1");
  socket.event(400, {}); // of the second join, before its reply: the place is 3 now
  assert.deepEqual(world.ids, ["400"]);
});

test("a gap in the reply without anything retained goes on from the head", async () => {
  const { world, bridge, socket } = await joined(
    { cursor: { epoch: "e0", id: "500" }, recoverRetained: false },
    recovered({ recovered: false, gap: gap("expired", "500", "3") }),
  );
  assert.equal(socket.joins.length, 1);
  socket.push("replay_complete", complete("9", { recovered: false, gap: gap("expired", "500", "3") }));
  assert.deepEqual(bridge.cursor, { epoch: "e1", id: "9" });
  assert.equal(world.of("gap").length, 1);
  assert.deepEqual(world.of("caughtUp"), [{ recovered: false, from: { epoch: "e0", id: "500" } }]);
});

test("a verdict withdrawn by replay_complete is told, and what is retained is asked for", async () => {
  const { world, socket } = await joined({ cursor: { epoch: "e1", id: "5" } });
  socket.event(6);
  socket.push("replay_complete", complete("9", { recovered: false, gap: gap("expired", "6", "8") }));
  assert.deepEqual(world.of("gap"), [gap("expired", "6", "8")]);
  assert.equal(socket.join[4].since_id, "8");
});

test("hub_reset keeps the cursor, is told once, and heals when the home comes", async () => {
  const cursor = { epoch: "e1", id: "5" };
  const { world, bridge, socket } = await joined({ cursor }, { epoch: null, head_id: null, recovered: null, gap: null, server: AWAY });
  for (let round = 0; round < 3; round++) {
    socket.push("replay_complete", { epoch: null, to_id: null, recovered: false, gap: gap("hub_reset", "5") });
    socket.push("phx_error", { reason: "hub_reset" });
    await world.pass(10_000);
    socket.reply({ epoch: null, head_id: null, recovered: false, gap: gap("hub_reset", "5"), server: AWAY });
  }
  assert.equal(world.of("gap").length, 1);
  assert.deepEqual(bridge.cursor, cursor);
  socket.push("phx_error", { reason: "hub_reset" });
  await world.pass(10_000);
  assert.equal(socket.join[4].since_id, "5");
  socket.reply(recovered());
  socket.event(6);
  socket.push("replay_complete", complete("6"));
  assert.deepEqual(world.ids, ["6"]);
  assert.deepEqual(world.of("caughtUp").at(-1), { recovered: true, from: cursor });
});

test("phx_error joins again with the current cursor, backing off; an answer to an earlier join is ignored", async () => {
  const { world, socket } = await joined({ cursor: { epoch: "e1", id: "1" } });
  socket.event(2);
  const waits = [];
  for (let round = 0; round < 6; round++) {
    const [before, since] = [socket.joins.length, world.time];
    socket.push("phx_error", {});
    while (socket.joins.length === before) await world.pass(world.nextDue);
    waits.push(world.time - since);
  }
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 10_000]);
  assert.equal(socket.join[4].since_id, "2");
  socket.push("session_event", { event: { event_id: "3", type: "final" } }, "1");
  assert.deepEqual(world.ids, ["2"]);
});

test("phx_close and a final refusal of the join are the end; a temporary one is not", async () => {
  const { world, socket, bridge } = await joined();
  socket.push("phx_close", {});
  assert.deepEqual([bridge.state.state, bridge.state.reason, socket.closed], ["ended", "closed", true]);
  await world.pass(3_600_000);
  assert.equal(world.sockets.length, 1);

  const other = new World();
  const refused = other.bridge().start();
  await settled();
  other.socket.open();
  other.socket.reply({ reason: "rate_limited", retry_after_ms: 3000 }, "error");
  await other.pass(2999);
  assert.equal(other.socket.joins.length, 1);
  await other.pass(1);
  assert.equal(other.socket.joins.length, 2);
  other.socket.reply({ reason: "unauthorized" }, "error");
  assert.deepEqual([refused.state.state, refused.state.reason], ["ended", "unauthorized"]);
});

test("it beats every 30 s, and a mute hub is a lost one, since when it was last heard", async () => {
  const { world, bridge, socket } = await joined();
  await world.pass(30_000);
  socket.beatReply();
  const heard = world.time;
  await world.pass(59_999);
  assert.equal(socket.beats.length, 2);
  assert.ok(!socket.closed);
  await world.pass(1);
  assert.ok(socket.closed);
  assert.deepEqual([bridge.state.state, bridge.state.since], ["offline", heard]);
});

test("reconnecting: full jitter, doubled up to 30 s, counted anew after a healthy connection", async () => {
  const { world, socket } = await joined();
  const waits = [];
  socket.fail();
  for (let round = 0; round < 8; round++) {
    waits.push(world.nextDue);
    await world.pass(waits.at(-1));
    world.socket.fail();
  }
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
  world.chance = 0.25;
  await world.pass(30_000);
  const reached = world.socket;
  reached.open();
  await world.pass(10_000);
  reached.fail();
  assert.equal(world.nextDue, 125);
});

test("it resumes on a new socket behind the last event, and says offline until the hub has answered", async () => {
  const { world, bridge, socket } = await joined({ cursor: { epoch: "e1", id: "1" } });
  socket.event(2);
  socket.fail();
  assert.equal(bridge.state.state, "offline");
  await world.pass(500);
  world.socket.open();
  assert.equal(bridge.state.state, "offline");
  assert.deepEqual(world.socket.join[4], { partials: "all", since_id: "2", epoch: "e1" });
  world.socket.reply(recovered());
  assert.deepEqual([bridge.state.state, bridge.state.caughtUp], ["online", false]);
});

test("a socket closed as revoked is the end", async () => {
  const { world, bridge, socket } = await joined();
  socket.fail("credential_revoked");
  assert.deepEqual([bridge.state.state, bridge.state.reason], ["revoked", "credential_revoked"]);
  assert.equal(world.timers.size, 0);
});

test("an upgrade refused without a word: the hub is asked why, not each time", async () => {
  const world = new World();
  const bridge = world.bridge().start();
  await settled();
  for (let failure = 0; failure < 8; failure++) {
    world.socket.fail();
    await settled();
    await world.pass(world.nextDue);
  }
  assert.deepEqual(world.asked.length, 4);
  assert.equal(world.asked[0].url, "http://hub.test/api/me");
  assert.equal(world.asked[0].init.headers.authorization, `Bearer ${CREDENTIAL}`);
  assert.equal(bridge.state.state, "offline");
  world.answers.push({ status: 403, body: { error: { code: "credential_revoked", message: "revoked" } } });
  world.socket.fail();
  await settled();
  assert.deepEqual([bridge.state.state, bridge.state.reason], ["revoked", "credential_revoked"]);
});

test("the network or the page coming back: connect at once, or check that the socket lives", async () => {
  const network = new EventTarget();
  const visibility = Object.assign(new EventTarget(), { visibilityState: "visible" });
  const { world, bridge, socket } = await joined({ network, visibility });
  visibility.dispatchEvent(new Event("visibilitychange"));
  assert.equal(socket.beats.length, 1);
  socket.beatReply();
  await world.pass(4000);
  assert.ok(!socket.closed);
  socket.beatReply();
  network.dispatchEvent(new Event("offline"));
  await world.pass(4000);
  assert.ok(socket.closed);
  assert.equal(bridge.state.state, "offline");
  assert.equal(world.sockets.length, 1);
  network.dispatchEvent(new Event("online"));
  assert.equal(world.sockets.length, 2);
  bridge.stop();
  network.dispatchEvent(new Event("online"));
  assert.equal(world.sockets.length, 2);
});

test("the cursor is kept, also by a storage of promises, and read again", async () => {
  const kept = new Map();
  const storage = { getItem: async (key) => kept.get(key) ?? null, setItem: async (key, text) => void kept.set(key, text) };
  const { world, socket, bridge } = await joined({ cursor: undefined, storage });
  for (let id = 10; id < 60; id++) socket.event(id);
  await world.pass(500);
  assert.deepEqual([...kept], [["session-bridge:cursor:home", '{"epoch":"e1","id":"59"}']]);
  socket.event(60);
  bridge.stop();
  const again = await joined({ cursor: undefined, storage });
  assert.equal(again.socket.join[4].since_id, "60");
  kept.set("session-bridge:cursor:home", "{broken");
  assert.ok(!("since_id" in (await joined({ cursor: undefined, storage })).socket.join[4]));
});

test("it is iterated; the cursor covers what the consumer is done with; the end ends it", async () => {
  const world = new World();
  const bridge = world.bridge({ cursor: { epoch: "e1", id: "1" } });
  const seen = [];
  const reading = (async () => {
    for await (const { kind, value } of bridge) {
      seen.push(kind === "event" ? value.event_id : kind);
      if (value.event_id === "3") assert.deepEqual(bridge.cursor, { epoch: "e1", id: "2" });
    }
  })();
  await settled();
  world.socket.open();
  world.socket.reply(recovered());
  world.socket.event(2);
  world.socket.event(3);
  await settled();
  world.socket.push("phx_close", {});
  await reading;
  assert.deepEqual(seen, ["state", "status", "state", "2", "3", "state"]);
});

test("a consumer that stands still is not buffered for without end", async () => {
  const world = new World();
  const bridge = world.bridge({ cursor: { epoch: "e1", id: "1" } });
  const items = bridge[Symbol.asyncIterator]();
  await items.next();
  await settled();
  await settled();
  world.socket.open();
  world.socket.reply(recovered());
  const socket = world.socket;
  for (let id = 2; id <= 20_000; id++) socket.event(id);
  assert.ok(socket.closed);
  await world.pass(60_000);
  assert.equal(world.sockets.length, 1);
  const ids = [];
  const reading = (async () => {
    for (let item; !(item = await items.next()).done; ) if (item.value.kind === "event") ids.push(item.value.value.event_id);
  })();
  while (world.sockets.length === 1) await settled();
  world.socket.open();
  assert.ok(ids.length > 9000 && ids.length < 11_000);
  assert.equal(world.socket.join[4].since_id, ids.at(-1));
  bridge.stop();
  await reading;
});

test("a message that makes no sense costs the connection, not the bridge", async () => {
  for (const nonsense of ["{", "[1]", '["1",null,"app:home","session_event",null]', "null"]) {
    const { world, socket, bridge } = await joined();
    socket.onmessage({ data: nonsense });
    if (nonsense === "[1]") continue; // of no topic of ours
    assert.equal(bridge.state.state, "offline", nonsense);
    await world.pass(500);
    assert.equal(world.sockets.length, 2);
  }
});

test("a callback that throws loses neither its error nor the next event", async () => {
  const { world, socket } = await joined({
    onEvent: () => {
      throw new Error("the consumer's own");
    },
  });
  socket.event(10);
  await assert.rejects(world.pass(0), /the consumer's own/);
  assert.ok(!socket.closed);
});

test("redeem and me say what the hub said, in one kind of error", async () => {
  const world = new World();
  world.answers.push({ status: 201, body: { device_id: "d", credential: "c" } });
  assert.deepEqual(await redeem("http://hub.test", "bcdf-ghjk-lmnp", "Tablet", world.options), { device_id: "d", credential: "c" });
  assert.equal(world.asked[0].url, "http://hub.test/api/pairing/redeem");
  assert.deepEqual(JSON.parse(world.asked[0].init.body), { code: "bcdf-ghjk-lmnp", name: "Tablet" });
  const wrong = { error: { code: "wrong", message: "no such code" } };
  const limited = { error: { code: "rate_limited", message: "later", retry_after_ms: 1500 } };
  for (const [answer, code, status, wait] of [
    [{ status: 403, body: wrong }, "wrong", 403, null],
    [{ status: 429, body: limited }, "rate_limited", 429, 1500],
    [{ status: 429, headers: { "retry-after": "7" }, body: { error: { code: "rate_limited" } } }, "rate_limited", 429, 7000],
    [null, "unreachable", 0, null],
  ]) {
    world.answers.push(answer);
    await assert.rejects(me("http://hub.test", "c", world.options), (error) => {
      assert.ok(error instanceof BridgeError);
      assert.deepEqual([error.code, error.status, error.retryAfterMs], [code, status, wait]);
      return true;
    });
  }
});
