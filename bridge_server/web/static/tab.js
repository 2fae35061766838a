/**
 * What this tab keeps until it is closed, over reloads: what was written and not sent, and the sessions begun here.
 *
 * @module tab
 */

const DRAFTS = "session-bridge:drafts";
const BEGUN = "session-bridge:begun";
const MOST = 20; // entries of each; the oldest go. A draft is as long as its field lets it be

function read(name) {
  try {
    const entries = JSON.parse(sessionStorage.getItem(name));
    return Array.isArray(entries) ? entries.filter((one) => Array.isArray(one) && one.length === 2) : [];
  } catch {
    return []; // nothing is kept here, or something else
  }
}

/** A small map of texts, the last set last. */
class Kept {
  #name;
  #entries = null;

  constructor(name) {
    this.#name = name;
  }

  get(key) {
    return this.#read().get(key);
  }

  has(key) {
    return this.#read().has(key);
  }

  /** @param {string} key @param {string} text an empty one is forgotten */
  set(key, text) {
    const entries = this.#read();
    entries.delete(key);
    if (text) entries.set(key, text);
    if (entries.size > MOST) entries.delete(entries.keys().next().value);
    try {
      sessionStorage.setItem(this.#name, JSON.stringify([...entries]));
    } catch {
      // No room, or not allowed: it lasts as long as the page.
    }
  }

  /** @param {(key: string) => boolean} isOver which entries are forgotten */
  forget(isOver) {
    for (const key of [...this.#read().keys()].filter(isOver)) this.set(key, "");
  }

  #read() {
    return (this.#entries ??= new Map(read(this.#name)));
  }
}

/** What was written and not sent, by `[home, session]` as JSON. */
export const drafts = new Kept(DRAFTS);

/** The ids of sessions that were begun here, whether or not home has them yet. */
export const begun = new Kept(BEGUN);
