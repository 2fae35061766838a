// Notifications as a reader has them, and what becomes of dismissing one: A130, A131, A143, A149 to A152, A170 to A188.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { load } from "./page.mjs";

const { Notices, isNews, ownerOf, placeOf, precedence } = await load("notices");
const { dismiss, refresh } = await load("dismissals");
const { BridgeError } = await load("bridge");
const { kept } = await load("home");

const record = (more = {}) => ({ id: "n", revision: 1, status: "pending", severity: "warning", title: "T", ...more });
const told = (verb, more) => [{ type: `x_notification_${verb}`, notification: record(more), display: record(more).display }, verb];

function notices(owner = "application", ...events) {
  const all = new Notices(owner);
  for (const event of events) all.apply(...event);
  return all;
}

test("A143 an event that is told late changes nothing, and what is over does not come back", () => {
  const all = notices("application", told("created"), told("updated", { revision: 3, title: "3" }), told("updated", { revision: 2, title: "2" }));
  assert.equal(all.get("n").title, "3");
  const before = all.get("n");
  all.take(record({ revision: 3, title: "3" }));
  assert.equal(all.get("n"), before, "the same revision is the same notification: what is shown of it stays");
  all.apply(...told("dismissed", { revision: 4, status: "dismissed" }));
  all.take(record({ revision: 3 }));
  assert.equal(all.size, 0);
  all.apply(...told("created", { id: "m" }));
  assert.equal(all.size, 1);
});

test("A147 a record without a revision is named by its time", () => {
  const all = notices("session", told("created", { revision: undefined, updated_at: "2026-01-01T00:00:00Z" }));
  assert.equal(all.get("n").token, "2026-01-01T00:00:00Z");
  all.apply(...told("updated", { revision: undefined, updated_at: "2026-01-02T00:00:00Z", title: "newer" }));
  assert.equal(all.get("n").title, "newer");
  all.apply(...told("dismissed", { revision: 1, status: "dismissed" }));
  assert.equal(all.size, 0);
});

test("A132 A133 home's own list is right, except about what came while it was asked for", () => {
  const all = notices("application", told("created", { id: "gone" }), told("created", { id: "kept" }), told("created", { id: "moved" }));
  const before = all.known();
  all.apply(...told("updated", { id: "moved", revision: 2 }));
  all.apply(...told("created", { id: "new" }));
  all.rehydrate([record({ id: "kept" }), record({ id: "missed", revision: 7 }), null, { no: "id" }], before);
  assert.deepEqual([...all.values()].map(({ id }) => id).sort(), ["kept", "missed", "moved", "new"]);
  all.respond({ title: "Local" });
  all.rehydrate([], all.known());
  assert.deepEqual([...all.values()].map(({ title }) => title), ["Local"]);
});

test("an error stands before a newer success, a warning between them, and of each the newest is first", () => {
  const given = [["success", 9], ["info", NaN], ["error", 1], ["warning", 5], ["error", 2], ["info", 8]];
  const sorted = given.map(([severity, at]) => ({ severity, at })).sort(precedence);
  assert.deepEqual(sorted.map(({ severity, at }) => [severity, at]), [["error", 2], ["error", 1], ["warning", 5], ["info", NaN], ["success", 9], ["info", 8]]);
});

test("what a home tells without end is bounded here", () => {
  const all = notices();
  for (let n = 0; n < 1000; n++) all.apply(...told("created", { id: `n${n}` }));
  assert.equal(all.size, 300);
  assert.ok(all.get("n999"));
});

test("A130 A131 TTL decides whether what is unseen is still shown; what is shown stays", () => {
  const made = Date.parse("2026-01-01T00:00:00Z");
  const display = { ttl_seconds: 60 };
  const all = notices("application", told("created", { updated_at: "2026-01-01T00:00:00Z", display }));
  const [one] = all.values();
  assert.ok(isNews(one, made + 59_000));
  assert.ok(isNews(one, made + 3_600_000), "shown once, it stays");
  const late = [...notices("application", told("created", { updated_at: "2026-01-01T00:00:00Z", display })).values()][0];
  assert.ok(!isNews(late, made + 61_000));
  assert.ok(!isNews(late, made), "and what came too late does not come back");
  assert.ok(isNews([...notices("application", told("created")).values()][0], Infinity));
  all.apply(...told("updated", { revision: 2, updated_at: "2026-01-01T02:00:00Z", display }));
  assert.ok(isNews(all.get("n"), made + 7_200_000), "a newer revision is news again");
});

test("A170 to A178, A182, A183: every owner, every presentation, on a phone and on a desktop", () => {
  const place = (owner, presentation, wide, more) => placeOf(owner, { presentation, ...more }, wide);
  const table = ["application", "session"].flatMap((owner) => ["banner", "inline", "modal"].map((one) => [place(owner, one, false), place(owner, one, true)]));
  assert.deepEqual(table, [["rail", "rail"], ["rail", "rail"], ["modal", "rail"], ["rail", "rail"], ["region", "region"], ["modal", "rail"]]);
  assert.equal(place("session", "modal", false, { later: true }), "rail");
});

test("A185 A186 a record that names no presentation, or a strange one, is shown all the same", () => {
  const shown = (owner, presentation) => [...notices(owner, told("created", { display: { presentation } })).values()][0].presentation;
  assert.deepEqual([shown("application"), shown("session"), shown("session", "toast"), shown("application", "modal")], ["banner", "inline", "inline", "modal"]);
});

test("A177 A184 A187 A188 what an action answers with is a modal of its session, unless it says otherwise", () => {
  assert.deepEqual(
    [ownerOf({}, "s"), ownerOf({}), ownerOf({ session_id: "t" }), ownerOf({ owner: "connection" }, "s"), ownerOf({ session_id: 7 }, null)],
    ["s", null, "t", null, null],
  );
  const all = notices("session");
  all.respond({ title: "Done", body: "b" });
  all.respond({ title: "Look", presentation: "inline", severity: "success" });
  assert.deepEqual([...all.values()].map((one) => [one.title, one.presentation, one.severity, one.local]), [
    ["Done", "modal", "info", true],
    ["Look", "inline", "success", true],
  ]);
});

// Dismissing.

beforeEach(() => {
  const values = new Map();
  globalThis.localStorage = { getItem: (name) => values.get(name) ?? null, setItem: (name, value) => values.set(name, value) };
});

/** A home that answers as it is told; `asked` is what it was asked. */
function home(...answers) {
  const owners = new Map([null, "s"].map((session) => [session, new Notices(session ? "session" : "application")]));
  const asked = [];
  return {
    id: "home",
    asked,
    scopes: ["view", "approve"],
    may(scope) {
      return this.scopes.includes(scope);
    },
    notices: (session) => owners.get(session),
    async request(method, path, body) {
      asked.push(body === undefined ? [method, path] : [method, path, body]);
      const answer = await (answers.shift() ?? { ok: false, status: 404, body: null });
      if (answer instanceof Error) throw answer;
      return answer;
    },
  };
}

const ok = (notification) => ({ ok: true, status: 200, body: { notification } });
const conflict = (notification) => ({ ok: false, status: 409, body: { error: { code: "stale_revision", message: "stale", notification } } });
const offline = () => new BridgeError("server_offline", "away");

function shown(one, session = null) {
  one.notices(session).take(record());
  return one.notices(session).get("n");
}

const visible = (one, session = null) => [...one.notices(session).values()].filter((notice) => !kept.hidden(one.id)(notice)).map(({ title }) => title);
const act = (one, notice, wide, { session = null, said = [], changed = () => {} } = {}) => dismiss(one, session, notice, wide, changed, (text) => said.push(text));

test("A149 on a phone exactly the shown revision is hidden before home is asked", async () => {
  const one = home(ok(record({ revision: 2, status: "dismissed" })));
  const seen = [];
  await act(one, shown(one, "s"), false, { session: "s", changed: () => seen.push([visible(one, "s").length, one.asked.length]) });
  assert.deepEqual(seen[0], [0, 0]);
  assert.deepEqual(one.asked, [["POST", "/sessions/s/notifications/n/dismiss", { expected_revision: 1 }]]);
  assert.deepEqual([one.notices("s").size, kept.dismissals("home").length], [0, 0]);
});

test("A150 what home did not get stays hidden on a phone, and is sent again for that revision when it is back", async () => {
  const one = home(offline(), offline(), offline(), ok(record({ revision: 2, status: "dismissed" })));
  const said = [];
  await act(one, shown(one), false, { said });
  assert.deepEqual([visible(one), said, kept.dismissals("home").length], [[], [], 1]);
  await refresh(one, null, () => {});
  assert.equal(kept.dismissals("home").length, 1, "away again: it is kept");
  await refresh(one, null, () => {});
  assert.deepEqual(one.asked.filter(([method]) => method === "POST"), Array(3).fill(["POST", "/application/notifications/n/dismiss", { expected_revision: 1 }]));
  assert.deepEqual([one.notices(null).size, kept.dismissals("home").length], [0, 0]);
});

test("A151 a newer revision is shown again, and the old dismissal is forgotten", async () => {
  const one = home(offline(), conflict(record({ revision: 2, title: "Newer" })));
  await act(one, shown(one), false);
  one.notices(null).apply(...told("updated", { revision: 2, title: "Newer" }));
  assert.deepEqual(visible(one), ["Newer"]);
  await refresh(one, null, () => {});
  assert.deepEqual([visible(one), kept.dismissals("home").length], [["Newer"], 0]);
  assert.match(one.notices(null).get("n").problem, /changed meanwhile/);
});

test("a home that is forgotten leaves nothing behind in this browser", async () => {
  const one = home(offline());
  await act(one, shown(one), false);
  kept.hide("other", record());
  kept.remove("home");
  assert.deepEqual([kept.dismissals("home"), visible(one), kept.hidden("other")(record())], [[], ["T"], true]);
});

test("a dismissal that home refuses is shown again on a phone, with the reason", async () => {
  const one = home({ ok: false, status: 503, body: { error: { message: "no room on the disk" } } });
  const said = [];
  await act(one, shown(one), false, { said });
  assert.deepEqual([visible(one), said, kept.dismissals("home").length], [["T"], ["no room on the disk"], 0]);
});

test("A152 on a desktop what home did not do stays in sight, and can be tried again", async () => {
  let answer;
  const one = home(new Promise((resolve) => (answer = resolve)), ok(record({ revision: 2, status: "dismissed" })));
  const notice = shown(one);
  const waiting = act(one, notice, true);
  assert.deepEqual([visible(one), notice.busy], [["T"], true]);
  answer(offline());
  await waiting;
  assert.deepEqual([visible(one), notice.busy], [["T"], false]);
  assert.match(notice.problem, /not connected/);
  assert.equal(kept.dismissals("home").length, 0);
  await act(one, notice, true);
  assert.equal(one.notices(null).size, 0);
});

test("somebody else was faster: it is gone without a word", async () => {
  for (const wide of [true, false]) {
    const one = home(conflict(record({ revision: 2, status: "dismissed" })));
    const said = [];
    await act(one, shown(one), wide, { said });
    assert.deepEqual([visible(one), said], [[], []]);
  }
});

test("a home that keeps no notifications, or answers no requests: hiding it here is all there is to do", async () => {
  for (const answer of [new BridgeError("unsupported", ""), { ok: false, status: 404, body: null }]) {
    for (const wide of [true, false]) {
      const one = home(answer);
      const said = [];
      await act(one, shown(one), wide, { said });
      assert.deepEqual([visible(one), said, kept.dismissals("home").length], [[], [], 0]);
      one.notices(null).take(record()); // told once more, as at the next visit
      assert.deepEqual(visible(one), []);
    }
  }
});

test("who may only read hides it in this browser, and home is not asked", async () => {
  const one = home();
  one.scopes = ["view"];
  await act(one, shown(one), true);
  assert.deepEqual([visible(one), one.asked], [[], []]);
});

test("A132 A135 when home is there its lists are read: its own, and that of the session in front", async () => {
  const one = home({ ok: true, status: 200, body: { notifications: [record({ id: "a" })] } }, { ok: true, status: 200, body: { notifications: [record({ id: "b" })] } });
  shown(one, "s");
  await refresh(one, "s", () => {});
  assert.deepEqual(one.asked, [["GET", "/application/notifications"], ["GET", "/sessions/s/notifications"]]);
  assert.deepEqual([[...one.notices(null).values()][0].id, [...one.notices("s").values()].map(({ id }) => id)], ["a", ["b"]]);
});
