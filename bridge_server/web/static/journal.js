/**
 * What this browser has received, kept so that a reload goes on where it stopped: events and the cursor behind them,
 * written in one transaction, so that neither can be ahead of the other. Several tabs may write; an event is kept once.
 *
 * A record is `{id, event}` or `{id, gap}`. Its key is [server, era, id]; an era is one epoch, counted, because ids
 * start anew with each, and a gap stands half a step behind the id it follows.
 *
 * @module journal
 */

const MAX_RECORDS = 20_000; // per server
const PRUNE_EVERY = 1000;

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

const finished = (transaction) =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });

const all = (server) => IDBKeyRange.bound([server], [server, []]);

export class Journal {
  #db;
  #written = 0;

  /** @param {IDBDatabase} db */
  constructor(db) {
    this.#db = db;
  }

  /** @returns {Promise<Journal | null>} null where the browser keeps nothing (a private window) */
  static async open() {
    try {
      const request = indexedDB.open("session-bridge", 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore("records");
        request.result.createObjectStore("homes");
      };
      const db = await done(request);
      db.onversionchange = () => db.close();
      return new Journal(db);
    } catch {
      return null;
    }
  }

  /**
   * `isCut`: the oldest were deleted here, to make room.
   * @returns {Promise<{records: object[], cursor: import("./bridge.js").Cursor | null, isCut: boolean}>}
   */
  async load(server) {
    const transaction = this.#db.transaction(["records", "homes"]);
    const records = transaction.objectStore("records");
    const [home, kept, keys] = await Promise.all([
      done(transaction.objectStore("homes").get(server)),
      done(records.getAll(all(server))),
      done(records.getAllKeys(all(server))),
    ]);
    if (!home) return { records: [], cursor: null, isCut: false };
    // Another tab may have kept more than the one that wrote the cursor last.
    const [, era, id] = keys.at(-1) ?? [server, -1, 0];
    const ahead = era === home.eras.lastIndexOf(home.cursor.epoch) && Math.floor(id) > Number(home.cursor.id);
    const isCut = Boolean(home.isCut);
    return { records: kept, isCut, cursor: ahead ? { ...home.cursor, id: String(Math.floor(id)) } : home.cursor };
  }

  /**
   * @param {string} server
   * @param {object[]} records in order, all of the epoch `epoch`
   * @param {string} epoch
   * @param {import("./bridge.js").Cursor} cursor
   */
  async write(server, records, epoch, cursor) {
    // Not the default "relaxed": what was written just before the page is left should be there on the next visit.
    const transaction = this.#db.transaction(["records", "homes"], "readwrite", { durability: "strict" });
    const [homes, store] = [transaction.objectStore("homes"), transaction.objectStore("records")];
    const end = finished(transaction);
    end.catch(() => {}); // it is awaited below, unless a request fails first
    const home = (await done(homes.get(server))) ?? { eras: [] };
    if (!home.eras.includes(epoch)) home.eras.push(epoch);
    const era = home.eras.lastIndexOf(epoch);
    for (const record of records) {
      store.add(record, [server, era, record.id]).onerror = (failure) => {
        failure.preventDefault(); // kept already, by another tab
        failure.stopPropagation();
      };
      // After this the home's ids go back within the same epoch.
      if (record.gap?.reason === "ahead") home.eras.push(epoch);
    }
    homes.put({ ...home, cursor }, server);
    this.#written += records.length;
    if (this.#written > PRUNE_EVERY) {
      this.#written = 0;
      const excess = (await done(store.count(all(server)))) - MAX_RECORDS;
      if (excess > 0) {
        const last = (await done(store.getAllKeys(all(server), excess))).at(-1);
        store.delete(IDBKeyRange.bound([server], last));
        homes.put({ ...home, cursor, isCut: true }, server);
      }
    }
    await end;
  }

  /** Delete everything that came from a server. */
  async forget(server) {
    const transaction = this.#db.transaction(["records", "homes"], "readwrite");
    transaction.objectStore("records").delete(all(server));
    transaction.objectStore("homes").delete(server);
    await finished(transaction);
  }
}
