/**
 * The app's side of a session bridge: receives the events of one home, in order, each once, also over drops.
 *
 *     import { Bridge, redeem } from "./bridge.js";
 *     const device = await redeem("https://hub.example", "BCDF-GHJK-LMNP", "Kitchen tablet");
 *     const bridge = new Bridge({
 *       hubUrl: "https://hub.example", credential: device.credential, serverId: device.server_id,
 *       onEvent: (event) => console.log(event.type), onGap: console.warn, onState: console.info,
 *     }).start();
 *     const answer = await bridge.request("POST", "/sessions/garden/send", { content: "water the roses" });
 *
 * No dependency, no DOM: it runs in browsers, in React Native and in Node (where there is no global WebSocket, hand one
 * in). It speaks Phoenix channels, version 2.0.0 of the serializer, and does connecting, heartbeats, resuming and
 * backing off by itself.
 *
 * What it promises: every event this app may see is delivered once and in order, or `onGap` says that something is
 * missing. What it can't hide it tells: see {@link State}.
 *
 * @module bridge
 */

const HEARTBEAT_MS = 30_000; // the hub ends a socket that is silent for 90 s
const PROBE_MS = 4_000; // how long a suspect socket may take to answer
const CONNECT_MS = 20_000;
const JOIN_MS = 15_000;
const HEALTHY_MS = 10_000; // a connection that lasted this long ends a row of failures
const RETRY_MS = [500, 30_000]; // reconnecting: full jitter over 0.5 s doubled each time, at most 30 s
const REJOIN_MS = [250, 10_000];
const SAVE_MS = 500;
const QUEUE_LIMIT = 10_000;
const REQUEST_MS = 60_000;
const REQUEST_BYTES = 384 * 1024; // what the hub takes as a body; over the limit of a message it would end the socket
const REFUSED = ["credential_revoked", "credential_invalid"];
const ID = /^(0|[1-9]\d{0,15})$/; // at most 2^53 - 1, so comparing as numbers is exact

/**
 * A place in a home's history: everything up to and including `id` has been seen. Ids mean something only within one
 * epoch (one life of the home's store); `epoch` null means the current one.
 * @typedef {{epoch: string | null, id: string}} Cursor
 */

/**
 * Events are missing behind `from_id`. `reason`: `expired` (the hub no longer holds them), `epoch_changed` (the home's
 * store was replaced), `ahead` (the home has gone back to an earlier state), `hub_reset` (the hub lost its memory and
 * the home is not there to refill it). With a `resume_after`, what the hub still holds behind that place follows.
 * @typedef {{reason: string, from_id: string | null, resume_after: string | null}} Gap
 */

/**
 * Whether the home is connected to the hub, and since when (RFC 3339).
 * @typedef {{online: boolean, since: string | null, name?: string | null, last_event_at?: string | null}} Status
 */

/**
 * What is true of the connection now. `state`:
 * - `connecting`: the first attempt is under way;
 * - `online`: joined, and the home is there. `caughtUp` says whether what was missed has been delivered;
 * - `waiting`: joined, but the home is not connected to the hub, or has yet to tell it what was missed;
 * - `offline`: no connection; `since` is when the hub was last heard. It keeps trying;
 * - `revoked`: the hub no longer takes this credential (`reason`); nothing is tried any more;
 * - `ended`: stopped, or refused for good (`reason`); nothing is tried any more.
 * `since` is in milliseconds since 1970, `home` the last {@link Status}, null before the first.
 * @typedef {{state: "connecting" | "online" | "waiting" | "offline" | "revoked" | "ended", since: number,
 *   caughtUp: boolean, home: Status | null, reason: string | null}} State
 */

/**
 * What was missed has been delivered, or a gap told; from here on events are live. `recovered` is false after a gap;
 * `from` is the place resumed behind, null if there was none.
 * @typedef {{recovered: boolean, from: Cursor | null}} CaughtUp
 */

/**
 * The home's answer to a request: any HTTP status is one. `body` is the answer's JSON, null where there is none.
 * @typedef {{id: string, ok: boolean, status: number, headers: Record<string, string>, body: any}} Answer
 */

/** The cursor that asks for everything the hub still holds. @type {Readonly<Cursor>} */
export const START = Object.freeze({ epoch: null, id: "0" });

/** The hub said no. `code` is its machine-readable reason, or `unreachable` when there was no usable answer. */
export class BridgeError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {number} status the HTTP status, 0 when unreachable
   * @param {number | null} retryAfterMs how long the hub asks to wait
   * @param {{id?: string, sent?: boolean}} [request] of a request: its id, and whether home may have done it
   */
  constructor(code, message, status = 0, retryAfterMs = null, { id = null, sent = false } = {}) {
    super(message);
    this.name = "BridgeError";
    this.code = code;
    this.status = status;
    this.retryAfterMs = retryAfterMs;
    this.id = id;
    this.sent = sent;
  }
}

/**
 * Exchange a pairing code for a credential of this device. A code works once: keep what this returns.
 * @param {string} hubUrl
 * @param {string} code as shown at home; case, dashes and spaces don't matter
 * @param {string} name what the home's owner will see in the list of devices
 * @param {{fetch?: typeof fetch}} [options]
 * @returns {Promise<{device_id: string, server_id: string, server_name: string, scopes: string[], credential: string}>}
 * @throws {BridgeError} `malformed`, `wrong`, `expired`, `reused`, `rate_limited` (see `retryAfterMs`), `unreachable`
 */
export function redeem(hubUrl, code, name, options = {}) {
  const headers = { "content-type": "application/json" };
  return call(hubUrl, "/api/pairing/redeem", { method: "POST", headers, body: JSON.stringify({ code, name }) }, options);
}

/**
 * Ask the hub who a credential belongs to, and whether the home is online.
 * @param {string} hubUrl
 * @param {string} credential
 * @param {{fetch?: typeof fetch}} [options]
 * @returns {Promise<{kind: string, device_id: string, name: string, server_id: string, server_name: string,
 *   scopes: string[], server: {online: boolean, since: string | null}}>}
 * @throws {BridgeError} `credential_revoked`, `credential_invalid`, `unreachable`, …
 */
export function me(hubUrl, credential, options = {}) {
  return call(hubUrl, "/api/me", { headers: { authorization: `Bearer ${credential}` } }, options);
}

async function call(hubUrl, path, init, { fetch = globalThis.fetch }) {
  let answer, body;
  try {
    answer = await fetch(base(hubUrl) + path, { ...init, cache: "no-store", credentials: "omit" });
    body = await answer.json();
  } catch {
    throw new BridgeError("unreachable", "the hub did not answer", answer?.status);
  }
  if (answer.ok) return body;
  const error = body?.error ?? {};
  const wait = error.retry_after_ms ?? (Number(answer.headers?.get?.("retry-after")) * 1000 || null);
  throw new BridgeError(error.code ?? body?.reason ?? "unreachable", error.message ?? "refused", answer.status, wait);
}

const base = (hubUrl) => String(hubUrl).replace(/[?#].*$/, "").replace(/\/+$/, "");

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/**
 * Base64url without padding, of ASCII text.
 * @param {string} text
 * @returns {string}
 * @throws {TypeError} for any other text
 */
export function base64url(text) {
  if (!/^[\0-\x7f]*$/.test(text)) throw new TypeError("only ASCII text can be encoded");
  let out = "";
  for (let at = 0; at < text.length; at += 3) {
    const [a, b, c] = [text.charCodeAt(at), text.charCodeAt(at + 1), text.charCodeAt(at + 2)]; // NaN >> n is 0
    out += ALPHABET[a >> 2] + ALPHABET[((a & 3) << 4) | (b >> 4)] + ALPHABET[((b & 15) << 2) | (c >> 6)] + ALPHABET[c & 63];
  }
  return out.slice(0, Math.ceil((text.length * 4) / 3));
}

/**
 * One home's events. Either give callbacks and call `start()`, or iterate: `for await (const {kind, value} of bridge)`
 * yields the same as `event`, `gap`, `status`, `state` and `caughtUp` items, and ends when the bridge does.
 */
export class Bridge {
  #options;
  #topic;
  /** @type {Cursor | null} behind the last thing delivered or queued: what a rejoin asks for */
  #place = null;
  #taken = null; // behind the last thing the consumer is done with: what is kept
  #state = { state: "connecting", since: 0, caughtUp: false, home: null, reason: null };
  #started = false;
  #socket = null;
  #opened = false;
  #heard = 0; // when the hub last said anything
  #answered = true; // whether it did since the last heartbeat
  #refs = 0;
  #join = null; // the join that counts: its ref, its cursor, what the hub has said to it so far
  #failures = 0;
  #rejoins = 0;
  #lastGap = null; // told, and not overtaken by an event or a good verdict
  #retrieving = false; // this join asks for what is retained behind a gap: done once per gap
  #timers = new Map();
  #listening = [];
  #queue = null;
  #wake = null;
  #requests = new Map(); // by id, those without an answer
  #held = false; // the queue is full: not connected until it is drained

  /**
   * @param {object} options
   * @param {string} options.hubUrl e.g. `https://hub.example`, a path before `/socket` included
   * @param {string} options.credential of this device
   * @param {string} options.serverId the home it was paired with
   * @param {Cursor | null} [options.cursor] where to resume behind; null: only what happens from now on;
   *   {@link START}: all that is held. Left out: what `storage` holds, else null
   * @param {{getItem: Function, setItem: Function} | null} [options.storage] keeps the cursor, under `storageKey`; its
   *   methods may return promises (AsyncStorage). Default: `localStorage` where there is one
   * @param {string} [options.storageKey]
   * @param {string} [options.sessionId] only the events of this session
   * @param {string[]} [options.types] only events of these types, at most 64
   * @param {"all" | "merged" | "none"} [options.partials]
   * @param {boolean} [options.recoverRetained] after a gap, deliver all that the hub still holds (default) instead of
   *   only what happens next: events known from before the gap may then come again
   * @param {(event: object) => void} [options.onEvent]
   * @param {(gap: Gap) => void} [options.onGap]
   * @param {(status: Status) => void} [options.onStatus] the home came or went
   * @param {(state: State) => void} [options.onState]
   * @param {(caughtUp: CaughtUp) => void} [options.onCaughtUp]
   * @param {EventTarget} [options.network] tells `online` and `offline`: a browser's `window`
   * @param {Document} [options.visibility] tells `visibilitychange`: a browser's `document`
   * @param {typeof WebSocket} [options.WebSocket]
   * @param {typeof fetch} [options.fetch]
   * @param {{setTimeout: Function, clearTimeout: Function}} [options.timers]
   * @param {() => number} [options.now] milliseconds since 1970
   * @param {() => number} [options.random] as Math.random
   */
  constructor(options) {
    this.#options = {
      WebSocket: globalThis.WebSocket,
      fetch: globalThis.fetch,
      timers: { setTimeout: (what, ms) => setTimeout(what, ms), clearTimeout: (timer) => clearTimeout(timer) },
      now: Date.now,
      random: Math.random,
      partials: "all",
      recoverRetained: true,
      storageKey: `session-bridge:cursor:${options.serverId}`,
      ...options,
    };
    if (options.storage === undefined) this.#options.storage = localStorageOrNull();
    if (!options.credential || !options.serverId) throw new TypeError("a bridge needs a credential and a serverId");
    base64url(options.credential);
    this.#topic = `app:${options.serverId}`;
  }

  /** Where to resume behind: covers everything delivered so far. @returns {Cursor | null} */
  get cursor() {
    return this.#taken;
  }

  /** @returns {State} */
  get state() {
    return this.#state;
  }

  /** Connect, and stay connected until `stop`. Starting twice is harmless. @returns {this} */
  start() {
    if (this.#started) return this;
    this.#started = true;
    this.#heard = this.#options.now();
    this.#listen(this.#options.network, "online", () => this.probe());
    this.#listen(this.#options.network, "offline", () => this.probe());
    this.#listen(this.#options.visibility, "visibilitychange", () => {
      if (this.#options.visibility.visibilityState === "hidden") this.#save();
      else this.probe();
    });
    this.#tell("connecting", this.#heard);
    this.#load();
    return this;
  }

  /** Disconnect for good. Stopping twice is harmless. */
  stop() {
    this.#end("ended", "stopped");
  }

  /** Something may have changed (the network, the app in front again): connect now, or check that the socket lives. */
  probe() {
    if (this.#timers.has("retry")) this.#connect();
    else if (this.#socket && this.#opened) this.#beat(PROBE_MS);
  }

  /**
   * Ask the home's API through the hub. A lost connection is waited for and the request sent again under its id, which
   * makes it safe: what changes something is done once. With the same `id` you may also repeat it yourself later.
   * @param {string} method
   * @param {string} path e.g. `/sessions/garden/send`; build segments with encodeURIComponent
   * @param {object} [body] JSON; a GET has none
   * @param {{id?: string, timeout?: number}} [options] `id`: 8 to 128 letters, digits, - and _; `timeout` in ms
   * @returns {Promise<Answer>}
   * @throws {BridgeError} `server_offline`, `timeout`, `forbidden`, `rate_limited`, `idempotency_mismatch`, `too_large`,
   *   `unsupported`, `in_flight`, `bad_push`, `bad_answer`, `closed`; `sent` says whether home may have done it
   */
  request(method, path, body, { id = this.newId(), timeout = REQUEST_MS } = {}) {
    return new Promise((resolve, reject) => {
      const fail = (code, message) => reject(new BridgeError(code, message, 0, null, { id }));
      if (this.#isOver) return fail("closed", "this bridge has ended");
      if (this.#requests.has(id)) return fail("in_flight", "a request of this id is under way");
      const given = body !== undefined && body !== null;
      if (given && utf8Length(JSON.stringify(body)) > REQUEST_BYTES) {
        return fail("too_large", `a body has at most ${REQUEST_BYTES} bytes`);
      }
      const asked = { id, method, path, ...(given && { body }) };
      const request = { asked, resolve, reject, ref: null, sent: false, parts: [] };
      this.#requests.set(id, request);
      this.#after(`request ${id}`, timeout, () => this.#failRequest(request, "timeout", "no answer in time"));
      if (this.#join?.open) this.#sendRequest(request);
    });
  }

  /** A random id for {@link request}, to be kept where it may have to be repeated. @returns {string} */
  newId() {
    const bytes = new Uint8Array(22);
    if (globalThis.crypto?.getRandomValues) crypto.getRandomValues(bytes);
    else bytes.forEach((_, at) => (bytes[at] = Math.random() * 256)); // React Native has none of its own
    return Array.from(bytes, (byte) => ALPHABET[byte & 63]).join("");
  }

  async *[Symbol.asyncIterator]() {
    if (this.#queue) throw new Error("a bridge is iterated once");
    const queue = (this.#queue = []);
    this.start();
    try {
      while (queue.length || !this.#isOver) {
        if (!queue.length) await new Promise((resolve) => (this.#wake = resolve));
        for (const [item, place] of queue.splice(0)) {
          yield item;
          this.#commit(place);
        }
        if (this.#held && !queue.length) {
          this.#held = false;
          this.#connect();
        }
      }
    } finally {
      this.stop();
    }
  }

  // Connecting.

  get #isOver() {
    return this.#state.state === "revoked" || this.#state.state === "ended";
  }

  async #load() {
    const { cursor, storage, storageKey } = this.#options;
    let kept = cursor;
    if (cursor === undefined && storage) {
      try {
        kept = JSON.parse(await storage.getItem(storageKey));
      } catch {
        kept = null; // unreadable is as good as none
      }
    }
    if (typeof kept?.id === "string" && ID.test(kept.id)) this.#place = { epoch: kept.epoch ?? null, id: kept.id };
    this.#taken = this.#place;
    this.#connect();
  }

  #connect() {
    this.#clear("retry");
    if (this.#isOver || this.#socket) return;
    const { WebSocket, hubUrl, credential } = this.#options;
    const url = base(hubUrl).replace(/^http/, "ws") + "/socket/websocket?vsn=2.0.0";
    let socket;
    try {
      socket = new WebSocket(url, ["phoenix", `base64url.bearer.phx.${base64url(credential)}`]);
    } catch (error) {
      this.#end("ended", String(error.message));
      return;
    }
    this.#socket = socket;
    this.#opened = false;
    this.#after("connect", CONNECT_MS, () => this.#drop());
    socket.onopen = () => {
      this.#clear("connect");
      this.#opened = this.#answered = true;
      this.#heard = this.#options.now();
      this.#after("healthy", HEALTHY_MS, () => (this.#failures = 0));
      this.#after("beat", HEARTBEAT_MS, () => this.#beat());
      this.#enter();
    };
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onerror = () => {}; // onclose follows
    socket.onclose = ({ reason }) => this.#lost(reason);
  }

  /** Let go of a socket without waiting for its goodbye, which a dead line never brings. */
  #drop() {
    this.#silence();
    this.#lost();
  }

  #silence() {
    const socket = this.#socket;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.onerror = () => {};
    try {
      socket.close();
    } catch {
      // it never opened
    }
  }

  #lost(reason) {
    const opened = this.#opened;
    this.#socket = this.#join = null;
    this.#opened = false;
    for (const name of ["connect", "healthy", "beat", "join", "rejoin"]) this.#clear(name);
    if (reason === "credential_revoked") {
      this.#end("revoked", reason);
      return;
    }
    this.#tell("offline", this.#heard);
    if (this.#held) return;
    const failures = this.#failures++;
    this.#after("retry", this.#jitter(RETRY_MS, failures), () => this.#connect());
    // A browser does not say why an upgrade failed: ask, though not each time.
    if (!opened && (failures & (failures - 1)) === 0) this.#ask();
  }

  async #ask() {
    try {
      await me(this.#options.hubUrl, this.#options.credential, this.#options);
    } catch (error) {
      if (REFUSED.includes(error.code)) this.#end("revoked", error.code);
    }
  }

  #end(state, reason) {
    if (this.#isOver) return;
    this.#silence();
    this.#socket = this.#join = null;
    for (const [target, type, heard] of this.#listening) target.removeEventListener(type, heard);
    this.#save();
    for (const request of [...this.#requests.values()]) this.#failRequest(request, "closed", `the bridge has ended: ${reason}`);
    for (const name of [...this.#timers.keys()]) this.#clear(name);
    this.#tell(state, this.#options.now(), reason);
  }

  /** Send a heartbeat. If nothing was heard since the one before, the line is dead: a socket does not notice. */
  #beat(patience = HEARTBEAT_MS) {
    if (patience === HEARTBEAT_MS && !this.#answered) {
      this.#drop();
      return;
    }
    this.#answered = false;
    this.#send(null, "phoenix", "heartbeat", {});
    this.#after("beat", patience, () => this.#beat());
  }

  // The channel.

  #enter() {
    const { partials, sessionId, types } = this.#options;
    const wishes = { partials, ...(sessionId && { session_id: sessionId }), ...(types && { types }) };
    const from = this.#place;
    if (from) wishes.since_id = from.id;
    if (from?.epoch) wishes.epoch = from.epoch;
    this.#join = { ref: String(this.#refs + 1), from, told: false, pending: true, caughtUp: false, open: false };
    this.#after("join", JOIN_MS, () => this.#drop());
    this.#send(this.#join.ref, this.#topic, "phx_join", wishes);
  }

  #reenter() {
    this.#join = null;
    this.#clear("join");
    this.#after("rejoin", this.#jitter(REJOIN_MS, ++this.#rejoins), () => this.#enter());
  }

  #send(joinRef, topic, event, payload) {
    const ref = String(++this.#refs);
    this.#socket.send(JSON.stringify([joinRef, ref, topic, event, payload]));
    return ref;
  }

  #receive(data) {
    this.#heard = this.#options.now();
    this.#answered = true;
    try {
      this.#take(...JSON.parse(data));
    } catch {
      this.#drop(); // what it said makes no sense: start afresh
    }
  }

  #take(joinRef, ref, topic, event, payload) {
    const join = this.#join;
    if (!join || topic !== this.#topic || (joinRef !== null && joinRef !== join.ref)) return; // of an earlier join
    if (event === "session_event") this.#pass(payload.event, join);
    else if (event === "phx_reply" && ref === join.ref) this.#replied(payload, join);
    else if (event === "phx_reply") this.#answeredRequest(ref, payload);
    else if (event === "body_part") this.#takePart(payload);
    else if (event === "replay_complete") this.#replayed(payload, join);
    else if (event === "server_status") this.#heardOfHome(payload);
    else if (event === "phx_error") this.#reenter();
    else if (event === "phx_close") this.#end("ended", "closed");
  }

  #replied({ status, response }, join) {
    this.#clear("join");
    if (status !== "ok") {
      const temporary = ["rate_limited", "flapping", "join crashed"].includes(response.reason);
      if (!temporary) this.#end("ended", response.reason ?? "refused");
      else if (response.retry_after_ms) this.#after("rejoin", response.retry_after_ms, () => this.#enter());
      else this.#reenter();
      return;
    }
    const { recovered, gap, epoch, head_id, server } = response;
    join.pending = recovered === null;
    join.told = recovered === false;
    if (join.told && this.#fellBehind(gap, epoch)) return;
    if (join.told) this.#settle(epoch, head_id);
    else if (recovered) this.#settle(epoch, this.#place?.id ?? head_id);
    else if (this.#place && epoch) this.#place = { epoch: this.#place.epoch ?? epoch, id: this.#place.id };
    join.open = true;
    this.#heardOfHome(server);
    for (const request of this.#requests.values()) if (this.#join === join) this.#sendRequest(request);
  }

  #replayed({ epoch, to_id, recovered, gap }, join) {
    join.pending = false;
    if (recovered === false && !join.told && this.#fellBehind(gap, epoch)) return;
    this.#settle(epoch, to_id);
    if (recovered) {
      this.#rejoins = 0;
      this.#retrieving = false;
      this.#lastGap = null;
    }
    join.caughtUp = true;
    this.#deliver("caughtUp", { recovered, from: join.from });
    this.#tellJoined();
  }

  #pass(event, join) {
    const id = event?.event_id;
    if (!ID.test(id)) return; // the hub relays no such event
    let epoch = this.#place?.epoch ?? null;
    if (this.#place && Number(id) <= Number(this.#place.id)) {
      if (join.from) return; // a repeat
      epoch = null; // another life of the home's store: who joined without a cursor is not told
    }
    this.#place = { epoch, id };
    this.#lastGap = null;
    this.#deliver("event", event);
  }

  /** Tell a gap; whether it joins again, for what is retained. */
  #fellBehind(gap, epoch) {
    const from = gap.resume_after;
    const retrieve = this.#options.recoverRetained && !this.#retrieving && epoch !== null && from !== null;
    this.#retrieving = retrieve;
    const told = JSON.stringify(gap);
    if (told !== this.#lastGap) {
      this.#lastGap = told; // while a home stays away each rejoin repeats it
      this.#deliver("gap", gap);
    }
    if (retrieve && this.#socket) {
      this.#place = { epoch, id: from };
      this.#enter();
    }
    return retrieve;
  }

  #settle(epoch, id) {
    const over = epoch && this.#place?.epoch && this.#place.epoch !== epoch; // an epoch that has ended
    if (id !== null && id !== undefined) this.#place = { epoch, id };
    else if (over) this.#place = null;
  }

  #heardOfHome(server) {
    const { epoch, head_id } = server; // for who joined without a cursor: where its events start
    if (head_id && !this.#place) this.#settle(epoch, head_id);
    const before = this.#state.home;
    const home = { name: null, last_event_at: null, ...before, ...server };
    if (before?.online !== home.online || before?.since !== home.since) this.#deliver("status", home);
    this.#tellJoined(home);
    // Moved along, for this join named no cursor; the next one does, and is judged.
    if (head_id && this.#join && this.#place.epoch && this.#place.epoch !== epoch) this.#reenter();
  }

  #tellJoined(home = this.#state.home) {
    const join = this.#join;
    if (!join) return; // the consumer stopped it, or was too slow
    const state = home?.online && !join.pending ? "online" : "waiting";
    const since = this.#state.state === state ? this.#state.since : this.#options.now();
    this.#tell(state, since, null, join.caughtUp, home);
  }

  // Requests.

  #sendRequest(request) {
    request.parts = [];
    request.ref = this.#send(this.#join.ref, this.#topic, "request", request.asked);
    request.sent = true;
  }

  #answeredRequest(ref, { status, response }) {
    const request = [...this.#requests.values()].find((one) => one.ref === ref);
    if (!request) return; // given up meanwhile, or of an earlier join
    if (status !== "ok") {
      const { reason = "refused", message, retry_after_ms = null } = response;
      const maybe = response.sent === true || reason === "timeout" || reason === "bad_answer";
      this.#failRequest(request, reason, message ?? `the request was refused: ${reason}`, retry_after_ms, maybe);
      return;
    }
    const inParts = typeof response.parts === "number";
    let { body = null } = response;
    if (inParts) {
      try {
        if (response.parts !== request.parts.length) throw new SyntaxError("parts are missing");
        body = JSON.parse(request.parts.join(""));
      } catch {
        this.#failRequest(request, "bad_answer", "the answer can't be read");
        return;
      }
    }
    this.#forgetRequest(request);
    const ok = response.status >= 200 && response.status < 300;
    request.resolve({ id: request.asked.id, ok, status: response.status, headers: response.headers ?? {}, body });
  }

  #takePart({ id, index, text }) {
    const request = this.#requests.get(id);
    if (request && index === request.parts.length) request.parts.push(text);
  }

  #failRequest(request, code, message, retryAfterMs = null, sent = request.sent) {
    this.#forgetRequest(request);
    request.reject(new BridgeError(code, message, 0, retryAfterMs, { id: request.asked.id, sent }));
  }

  #forgetRequest(request) {
    this.#requests.delete(request.asked.id);
    this.#clear(`request ${request.asked.id}`);
  }

  // Telling, keeping, waiting.

  #tell(state, since, reason = null, caughtUp = false, home = this.#state.home) {
    const next = { state, since, caughtUp, home, reason };
    const same = JSON.stringify(next) === JSON.stringify(this.#state);
    this.#state = next;
    if (!same) this.#deliver("state", next);
  }

  #deliver(kind, value) {
    if (this.#queue) {
      this.#queue.push([{ kind, value }, this.#place]);
      this.#wake?.();
      if (this.#queue.length > QUEUE_LIMIT && !this.#held) {
        this.#held = true;
        this.#drop();
      }
      return;
    }
    try {
      this.#options[`on${kind[0].toUpperCase()}${kind.slice(1)}`]?.(value);
    } catch (error) {
      // The consumer's fault must not stop the bridge, nor get lost.
      this.#options.timers.setTimeout(() => {
        throw error;
      }, 0);
    }
    this.#commit(this.#place);
  }

  #commit(place) {
    if (place === this.#taken) return;
    this.#taken = place;
    if (this.#options.storage && !this.#timers.has("save")) this.#after("save", SAVE_MS, () => this.#save());
  }

  #save() {
    const { storage, storageKey } = this.#options;
    this.#clear("save");
    if (!storage || !this.#taken) return;
    try {
      storage.setItem(storageKey, JSON.stringify(this.#taken))?.catch?.(() => {});
    } catch {
      // A full or forbidden storage costs a longer replay next time, nothing else.
    }
  }

  #jitter([first, most], doublings) {
    return this.#options.random() * Math.min(most, first * 2 ** doublings);
  }

  #after(name, ms, what) {
    this.#clear(name);
    const run = () => {
      this.#timers.delete(name);
      what();
    };
    this.#timers.set(name, this.#options.timers.setTimeout(run, ms));
  }

  #clear(name) {
    if (!this.#timers.has(name)) return;
    this.#options.timers.clearTimeout(this.#timers.get(name));
    this.#timers.delete(name);
  }

  #listen(target, type, heard) {
    target?.addEventListener(type, heard);
    if (target) this.#listening.push([target, type, heard]);
  }
}

function utf8Length(text) {
  let length = 0;
  for (const sign of text) length += sign <= "\x7f" ? 1 : sign <= "\u07ff" ? 2 : sign.length === 1 ? 3 : 4;
  return length;
}

function localStorageOrNull() {
  try {
    return globalThis.localStorage ?? null;
  } catch {
    return null; // forbidden by the user
  }
}
