// Time that only a test moves, and a hub that says only what the test lets it say.

import { readFileSync } from "node:fs";

// Imported from its text: that it can be is the proof that it imports nothing, and no package.json says it is a module.
const source = readFileSync(new URL("../../bridge_server/web/static/bridge.js", import.meta.url));
export const { Bridge, BridgeError, START, base64url, me, redeem } = await import(
  `data:text/javascript;base64,${source.toString("base64")}`
);

export const CREDENTIAL = "sbd_made-up";
export const TOPIC = "app:home";

/** Time that only the test moves, sockets that only the test answers. */
export class World {
  time = 1_000_000;
  sockets = [];
  timers = new Map();
  asked = [];
  answers = [];
  told = [];
  chance = 1;
  #last = 0;

  options = {
    hubUrl: "http://hub.test/",
    credential: CREDENTIAL,
    serverId: "home",
    cursor: null,
    storage: null,
    now: () => this.time,
    random: () => this.chance,
    timers: {
      setTimeout: (what, ms) => {
        this.timers.set(++this.#last, { what, at: this.time + ms });
        return this.#last;
      },
      clearTimeout: (id) => this.timers.delete(id),
    },
    fetch: async (url, init) => {
      this.asked.push({ url, init });
      const answer = this.answers.shift();
      if (!answer) throw new TypeError("no network");
      return { ok: answer.status < 400, status: answer.status, headers: new Headers(answer.headers), json: async () => answer.body };
    },
    WebSocket: socketOf(this),
    ...Object.fromEntries(
      ["event", "gap", "status", "state", "caughtUp"].map((kind) => [
        `on${kind[0].toUpperCase()}${kind.slice(1)}`,
        (value) => this.told.push([kind, value]),
      ]),
    ),
  };

  bridge(options = {}) {
    return new Bridge({ ...this.options, ...options });
  }

  get socket() {
    return this.sockets.at(-1);
  }

  of(kind) {
    return this.told.filter((one) => one[0] === kind).map((one) => one[1]);
  }

  get ids() {
    return this.of("event").map((event) => event.event_id);
  }

  get states() {
    return this.of("state").map((state) => state.state);
  }

  /** Let `ms` go by, running what falls due, in order. */
  async pass(ms) {
    const until = this.time + ms;
    for (;;) {
      await settled();
      const [id, timer] = [...this.timers].sort((a, b) => a[1].at - b[1].at)[0] ?? [];
      if (!timer || timer.at > until) break;
      this.timers.delete(id);
      this.time = Math.max(this.time, timer.at);
      timer.what();
    }
    this.time = until;
    await settled();
  }

  get nextDue() {
    return Math.min(...[...this.timers.values()].map((timer) => timer.at)) - this.time;
  }
}

const socketOf = (world) =>
  class {
    sent = [];
    closed = false;
    constructor(url, protocols) {
      Object.assign(this, { url, protocols });
      world.sockets.push(this);
    }
    send(text) {
      this.sent.push(JSON.parse(text));
    }
    close() {
      this.closed = true;
    }
    // What the hub and the network do:
    open() {
      this.onopen({});
    }
    fail(reason = "") {
      this.onerror?.({});
      this.onclose?.({ code: 1006, reason });
    }
    push(event, payload, joinRef = this.join[0]) {
      this.onmessage?.({ data: JSON.stringify([joinRef, null, TOPIC, event, payload]) });
    }
    event(id, more = {}) {
      this.push("session_event", { event: { event_id: String(id), type: "partial", ...more } });
    }
    reply(response, status = "ok") {
      const [joinRef, ref] = this.join;
      this.onmessage({ data: JSON.stringify([joinRef, ref, TOPIC, "phx_reply", { status, response }]) });
    }
    replyTo([joinRef, ref], response, status = "ok") {
      this.onmessage?.({ data: JSON.stringify([joinRef, ref, TOPIC, "phx_reply", { status, response }]) });
    }
    beatReply() {
      this.onmessage({ data: JSON.stringify([null, this.beats.at(-1)[1], "phoenix", "phx_reply", { status: "ok", response: {} }]) });
    }
    get joins() {
      return this.sent.filter((frame) => frame[3] === "phx_join");
    }
    get join() {
      return this.joins.at(-1);
    }
    get beats() {
      return this.sent.filter((frame) => frame[3] === "heartbeat");
    }
  };

export const settled = () => new Promise((resolve) => setImmediate(resolve));
export const ONLINE = { online: true, since: "2024-05-01T10:00:00Z", name: "Attic" };
export const AWAY = { online: false, since: "2024-05-01T11:00:00Z", name: "Attic" };
export const recovered = (more = {}) => ({ epoch: "e1", head_id: "9", recovered: true, gap: null, server: ONLINE, ...more });
export const complete = (to_id, more = {}) => ({ epoch: "e1", to_id, recovered: true, gap: null, ...more });
export const gap = (reason, from_id, resume_after = null) => ({ reason, from_id, resume_after });

/** A bridge whose join was answered. */
export async function joined(options = {}, response = recovered()) {
  const world = new World();
  const bridge = world.bridge(options).start();
  await settled();
  world.socket.open();
  world.socket.reply(response);
  return { world, bridge, socket: world.socket };
}
