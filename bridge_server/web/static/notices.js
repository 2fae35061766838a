/**
 * Notifications as a reader has them: what is known of each, where it is shown, whether it is still news. Pure: no DOM,
 * no clock, no network.
 *
 * @module notices
 */

import { textOf } from "./texts.js";

const MOST = 300; // of one owner, the oldest go; a home keeps at most 200 open
const ENDED = { __proto__: null, dismissed: true, resolved: true, expired: true };
const SEVERITIES = ["info", "success", "warning", "error"];
const PRESENTATIONS = ["banner", "inline", "modal"];

/**
 * @typedef {{id: string, token: number | string | undefined, revision: string, severity: string, title: string,
 *   body: string, presentation: string, ttl: number, at: number, local?: boolean, shown?: boolean, later?: boolean,
 *   busy?: boolean, problem?: string}} Notice
 * `token` names the revision to the home. The members with a question mark are whoever shows it's.
 */

/** The notifications of one owner, a home or a session: those that are not over. */
export class Notices {
  #open = new Map();
  #ended = new Map(); // id -> the revision that ended it: what is told late must not bring it back
  #responses = 0;

  /** @param {"application" | "session"} owner */
  constructor(owner) {
    this.owner = owner;
  }

  get size() {
    return this.#open.size;
  }

  /** @returns {IterableIterator<Notice>} */
  values() {
    return this.#open.values();
  }

  get(id) {
    return this.#open.get(id);
  }

  /** Take what an event tells; `verb` is the last word of its type. */
  apply(event, verb) {
    const record = event.notification ?? event.record ?? event;
    this.take(record, event.display, String(record.id ?? record.key ?? event.event_id), Boolean(ENDED[verb]));
  }

  /** Take a record as the home keeps it. */
  take(record, display = record.display, id = String(record.id), over = false) {
    const revision = String(record.revision ?? record.updated_at ?? "1");
    const place = order(record.revision);
    if (over || ENDED[record.status]) {
      this.#open.delete(id);
      this.#ended.delete(id);
      this.#ended.set(id, place);
      if (this.#ended.size > MOST) this.#ended.delete(this.#ended.keys().next().value);
      return;
    }
    const known = this.#open.get(id);
    if (place && place <= (this.#ended.get(id) ?? 0)) return;
    if (known && place && place <= order(known.token)) return; // the same, or told late
    const shown = display ?? {};
    const fallback = this.owner === "session" ? "inline" : "banner";
    this.#open.set(id, {
      id,
      token: record.revision ?? record.updated_at,
      revision,
      severity: SEVERITIES.includes(record.severity) ? record.severity : "info",
      title: textOf(shown.title ?? record.title ?? "Notification"),
      body: textOf(shown.body ?? record.body ?? ""),
      presentation: PRESENTATIONS.includes(shown.presentation) ? shown.presentation : fallback,
      ttl: Number(shown.ttl_seconds) || 0,
      at: Date.parse(record.updated_at ?? record.created_at ?? ""),
    });
    if (this.#open.size > MOST) this.#open.delete(this.#open.keys().next().value);
  }

  /** What is open now, for {@link rehydrate}. @returns {Map<string, string>} */
  known() {
    return new Map([...this.#open.values()].map(({ id, revision }) => [id, revision]));
  }

  /**
   * Take the home's own list, which is right where events were missed; `before` is what was known when it was asked for:
   * what came since then is newer than the list.
   */
  rehydrate(records, before) {
    const listed = new Set();
    for (const record of records) {
      if (typeof record?.id !== "string") continue;
      listed.add(record.id);
      this.take(record);
    }
    for (const [id, { revision, local }] of this.#open) {
      if (!local && !listed.has(id) && before.get(id) === revision) this.#open.delete(id);
    }
  }

  /** What an action answered with, to be shown here until it is read. A modal, unless it says otherwise. */
  respond(display) {
    const id = `response-${++this.#responses}`;
    this.take({ id, severity: display.severity }, { ...display, presentation: display.presentation ?? "modal" }, id);
    this.get(id).local = true;
  }

  /** It is read, or the home knows nothing of it. */
  drop(id) {
    this.#open.delete(id);
  }
}

/** Revisions can be told apart by age where they are numbers; 0 where they are not. */
const order = (revision) => (Number.isSafeInteger(revision) ? revision : 0);

/** Whether a display is to be seen, asked when its surface is: its time counts until it was first shown, not after. */
export function isNews(notice, now) {
  notice.shown ??= !(notice.ttl > 0 && now - notice.at > notice.ttl * 1000);
  return notice.shown;
}

const WEIGHT = { __proto__: null, error: 2, warning: 1 };

/** Which of two stands first, as for sorting: nothing newer hides an error. What has no time has just come. */
export function precedence(one, other) {
  const [at, otherAt] = [one, other].map((notice) => (Number.isNaN(notice.at) ? Number.MAX_VALUE : notice.at));
  return (WEIGHT[other.severity] ?? 0) - (WEIGHT[one.severity] ?? 0) || otherAt - at;
}

const PLACES = {
  __proto__: null,
  application: { banner: ["rail", "rail"], inline: ["rail", "rail"], modal: ["modal", "rail"] },
  session: { banner: ["rail", "rail"], inline: ["region", "region"], modal: ["modal", "rail"] },
};

/**
 * Where a notification stands. On a phone the rail and the modal are those of its own surface (the list of sessions, or
 * the session); on a desktop there is one rail. A modal that was put off is in the rail.
 * @returns {"rail" | "region" | "modal"}
 */
export function placeOf(owner, notice, wide) {
  return PLACES[owner][notice.presentation][wide || notice.later ? 1 : 0];
}

/** Whose an action's response is: its session's where there is one, unless it keeps to the connection. */
export function ownerOf(display, sessionId) {
  const named = display.session_id ?? sessionId;
  return typeof named === "string" && named && display.owner !== "connection" ? named : null;
}
