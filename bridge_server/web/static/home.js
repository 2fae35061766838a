/**
 * One paired home as this page knows it: its connection, what it has said, and what this browser keeps of it.
 *
 * @module home
 */

import { Bridge, BridgeError, START } from "./bridge.js";
import { Capabilities } from "./capabilities.js";
import { ownerOf } from "./notices.js";
import { Transcript } from "./transcript.js";

const KEEP_MS = 300; // events are written down in batches
const DEVICES = "session-bridge:devices";
const HIDDEN = "session-bridge:hidden";
const DISMISSALS = "session-bridge:dismissals";
const MOST_HIDDEN = 200;

/**
 * @typedef {{server_id: string, server_name: string, device_id: string, name: string, credential: string,
 *   scopes?: string[]}} Paired
 */

const read = (key, fallback) => {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? fallback;
  } catch {
    return fallback;
  }
};

/**
 * What this browser keeps in localStorage: the homes it is paired with, one device each; the notifications hidden here;
 * the dismissals that a home has not got yet, `{session, id, token, revision}`.
 */
export const kept = {
  /** @returns {Paired[]} */
  devices: () => read(DEVICES, []),

  /** Keep a pairing; one made earlier with the same home is replaced. Throws when the browser keeps nothing. */
  add(device) {
    const others = this.devices().filter((one) => one.server_id !== device.server_id);
    localStorage.setItem(DEVICES, JSON.stringify([...others, device]));
  },

  remove(serverId) {
    localStorage.setItem(DEVICES, JSON.stringify(this.devices().filter((one) => one.server_id !== serverId)));
    write(DISMISSALS, read(DISMISSALS, []).filter((one) => one.server !== serverId));
    write(HIDDEN, read(HIDDEN, []).filter((one) => JSON.parse(one)[0] !== serverId));
  },

  /** Reads what is hidden once, and says of each notification whether it is. */
  hidden(serverId) {
    const keys = new Set(read(HIDDEN, []));
    return (notice) => keys.has(hiddenKey(serverId, notice));
  },

  /** Hide exactly this revision: a newer one is shown again. */
  hide(serverId, notice) {
    write(HIDDEN, [...read(HIDDEN, []), hiddenKey(serverId, notice)]);
  },

  dismissals: (serverId) => read(DISMISSALS, []).filter((one) => one.server === serverId),

  /** Hide it, and remember that home has to hear of it. */
  dismissing(serverId, wanted) {
    this.hide(serverId, wanted);
    write(DISMISSALS, [...read(DISMISSALS, []), { server: serverId, ...wanted }]);
  },

  /** Home has answered: it is done, or it is shown again. */
  settled(serverId, wanted, done) {
    const key = hiddenKey(serverId, wanted);
    write(DISMISSALS, read(DISMISSALS, []).filter((one) => hiddenKey(one.server, one) !== key));
    if (!done) write(HIDDEN, read(HIDDEN, []).filter((one) => one !== key));
  },
};

function write(name, values) {
  try {
    localStorage.setItem(name, JSON.stringify(values.slice(-MOST_HIDDEN)));
  } catch {
    // No room, or not allowed: it is shown again at the next visit.
  }
}

const hiddenKey = (serverId, { id, revision }) => JSON.stringify([serverId, id, revision]);

export class Home {
  transcript = new Transcript();
  capabilities = new Capabilities(this);
  /** @type {import("./bridge.js").State} */
  state = { state: "connecting", since: Date.now(), caughtUp: false, home: null, reason: null };
  gap = null; // the last one told, until it is acknowledged or healed
  unseen = new Set(); // ids of sessions with something new
  #seen = 0; // the last id taken
  #awaited = []; // {id, come}: who waits until an event has been taken
  #hubUrl;
  #journal;
  #bridge = null;
  #listener;
  #pending = []; // received, not yet written down
  #keeping = null; // the timer
  #writing = Promise.resolve();
  #marks = new Set(); // sessions that get, or got, a mark where this visit begins
  #gone = false;

  /**
   * @param {Paired} device
   * @param {string} hubUrl
   * @param {import("./journal.js").Journal | null} journal
   * @param {{changed: () => void, happened: (session: object | null, event: object) => void,
   *   connected: (home: Home, before: string) => void, caughtUp: () => void}} listener
   */
  constructor(device, hubUrl, journal, listener) {
    this.device = device;
    this.#hubUrl = hubUrl;
    this.#journal = journal;
    this.#listener = listener;
  }

  get id() {
    return this.device.server_id;
  }

  get name() {
    return this.state.home?.name || this.device.server_name || "Home";
  }

  /** Show what is kept here, then go on behind it; with nothing kept, ask for all that the hub holds. */
  async start() {
    let before = { records: [], cursor: null, isCut: false };
    try {
      if (this.#journal) before = await this.#journal.load(this.id);
    } catch {
      this.#journal = null;
    }
    if (this.#gone) return;
    if (before.isCut) this.transcript.cut();
    this.#seen = Number(before.cursor?.id ?? 0);
    for (const { event, gap } of before.records) {
      if (gap) this.transcript.gap(gap);
      else this.transcript.apply(event);
    }
    for (const session of this.transcript.sessions.values()) this.#marks.add(session.id);
    this.#bridge = new Bridge({
      hubUrl: this.#hubUrl,
      credential: this.device.credential,
      serverId: this.id,
      cursor: before.cursor ?? START,
      storage: null,
      network: window,
      visibility: document,
      onEvent: (event) => this.#take(event),
      onGap: (gap) => this.#miss(gap),
      onState: (state) => this.#see(state),
      onCaughtUp: (caughtUp) => this.#caughtUp(caughtUp),
    }).start();
    this.#listener.changed();
  }

  retry() {
    this.#bridge?.probe();
  }

  /** The notifications of a session, or those of the home that belong to none. @param {string | null} session */
  notices(session) {
    return (session === null ? this.transcript : this.transcript.session(session)).notices;
  }

  /** Whether this browser was given a right: `view`, `approve` or `control`. */
  may(scope) {
    return Boolean(this.device.scopes?.includes(scope));
  }

  /** Which life of home's store the events are of, null while that is not known. */
  get epoch() {
    return this.#bridge?.cursor?.epoch ?? null;
  }

  /** Wait until all events up to this id have come. @param {string} id of the same epoch */
  reached(id) {
    if (this.#seen >= Number(id)) return Promise.resolve();
    return new Promise((come) => this.#awaited.push({ id: Number(id), come }));
  }

  #reach(id) {
    this.#seen = id;
    if (!this.#awaited.length) return;
    for (const one of this.#awaited) if (one.id <= id) one.come();
    this.#awaited = this.#awaited.filter((one) => one.id > id);
  }

  /** An id for a request that may have to be repeated. */
  newId() {
    return this.#bridge.newId();
  }

  /** @see Bridge.request; but nothing waits here for a home that is not there. */
  async request(...asked) {
    if (this.state.state !== "online") throw new BridgeError("server_offline", "home can't be reached now");
    const answer = await this.#bridge.request(...asked);
    this.#respond(asked, answer.body?.display);
    return answer;
  }

  /** What an action answers with is shown where it belongs. */
  #respond([method, path], display) {
    if (method === "GET" || typeof display !== "object" || display === null) return;
    const named = /^\/sessions\/([^/]+)\//.exec(path)?.[1];
    this.notices(ownerOf(display, named && decodeURIComponent(named))).respond(display);
    this.#listener.changed();
  }

  /** Stop, and write down what is still to be written. */
  async stop() {
    this.#bridge?.stop();
    await this.keep();
  }

  /** Stop, and delete the key and everything received from this browser. */
  async forget() {
    this.#gone = true;
    kept.remove(this.id);
    this.#bridge?.stop();
    clearTimeout(this.#keeping);
    await this.#writing;
    await this.#journal?.forget(this.id).catch(() => {});
  }

  /** Write down what was received, now. */
  keep() {
    clearTimeout(this.#keeping);
    this.#keeping = null;
    const cursor = this.#bridge?.cursor;
    if (!this.#journal || this.#gone || !cursor?.epoch) return this.#writing; // an epoch not known yet: later
    const records = this.#pending.splice(0);
    this.#writing = this.#writing
      .then(() => this.#journal?.write(this.id, records, cursor.epoch, cursor))
      .catch(() => {
        // No room, or the page is being left. What was kept before stays, with its cursor; nothing is kept behind it, for
        // that would leave a hole: the next visit asks the hub from there.
        this.#journal = null;
      });
    return this.#writing;
  }

  #soon() {
    this.#keeping ??= setTimeout(() => this.keep(), KEEP_MS);
  }

  #take(event) {
    const before = typeof event.session_id === "string" && this.transcript.sessions.get(event.session_id);
    if (before && !this.state.caughtUp && this.#marks.delete(before.id)) before.add({ kind: "mark" });
    const session = this.transcript.apply(event);
    if (session) this.unseen.add(session.id);
    if (this.#journal) {
      this.#pending.push({ id: Number(event.event_id), event });
      this.#soon();
    }
    this.#reach(Number(event.event_id));
    if (this.state.caughtUp) this.#listener.happened(session, event);
    this.#listener.changed();
  }

  #miss(gap) {
    if (gap.from_id === START.id) {
      // A first visit: what is gone was never here, and sessions begin in the middle. The next visit has to know it too.
      this.transcript.gap(gap);
      if (this.#journal && gap.reason === "expired") this.#pending.push({ id: 0.5, gap });
      return;
    }
    this.keep(); // under the epoch that ends here
    const cursor = this.#bridge.cursor;
    // After a hub_reset nobody knows yet whether anything is missing: the next verdict, or the next visit, will say.
    const open = gap.reason === "hub_reset";
    if (this.gap?.reason === "hub_reset") this.transcript.heal(this.gap.from_id);
    if (this.#journal && cursor?.epoch && !open) {
      const record = { id: Number(gap.from_id) + 0.5, gap };
      this.#writing = this.#writing.then(() => this.#journal?.write(this.id, [record], cursor.epoch, cursor)).catch(() => {});
    }
    this.gap = gap;
    if (["epoch_changed", "ahead"].includes(gap.reason)) this.#seen = 0; // ids begin anew
    this.transcript.gap(gap);
    this.#listener.changed();
  }

  #caughtUp({ recovered, from }) {
    if (recovered && this.gap?.reason === "hub_reset" && this.gap.from_id === from?.id) {
      this.transcript.heal(from.id);
      this.gap = null;
    }
    this.#marks.clear();
    this.#reach(Math.max(this.#seen, Number(this.#bridge.cursor?.id ?? 0)));
    this.#listener.caughtUp();
    if (this.#journal) this.#soon(); // the cursor may have moved without an event
    this.#listener.changed();
  }

  #see(state) {
    const before = this.state.state;
    this.state = state;
    if (before !== state.state) this.#listener.connected(this, before);
    this.#listener.changed();
  }
}
