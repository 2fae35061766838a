/**
 * What home still has of what events do not tell here any more: a session's earlier messages, and why events are missing.
 *
 * @module history
 */

import { itemsOf } from "./past.js";

const MOST = 1000; // earlier messages shown, the last ones
const PAGE = 200;
const TRIES = 3; // at a history that changes while it is read

const part = encodeURIComponent;

/** What home answers, null where it does not: that nobody knows is no reason to say anything. */
async function ask(home, path) {
  const answer = await home.request("GET", path).catch(() => null);
  return answer?.ok && answer.body?.epoch === home.epoch ? answer.body : null; // ids of another store say nothing here
}

/**
 * Say at the top of a session that its beginning is not among its events, and put the messages there that home has of it.
 * Nothing where all of it is here; only the words while home can't be asked: call it again when it is back.
 * @param {import("./home.js").Home} home @param {string} id @param {() => void} changed
 */
export async function recall(home, id, changed) {
  const session = home.transcript.session(id);
  if (!id || session.isRecalled || session.isRecalling || !isLacking(home, session)) return;
  session.isRecalling = true;
  try {
    if (!session.isWhole) session.lack("unknown");
    changed();
    if (home.state.state !== "online" || !home.state.caughtUp) return;
    if (!session.isWhole) await judge(home, session);
    if (!isLacking(home, session)) return;
    const found = await earlier(home, session);
    if (!found) return;
    session.isRecalled = true;
    session.recall(itemsOf(found.messages), found.more);
  } finally {
    session.isRecalling = false;
    changed();
  }
}

/** Whether there may be more of this session at home than its events say here. */
function isLacking(home, session) {
  if (session.items.length) return !session.isWhole || session.isCopy;
  return session.listed !== null && home.state.caughtUp;
}

/** Ask home whether the first event held here is the session's first one, and else whether home has those before it. */
async function judge(home, session) {
  const page = await ask(home, `/sessions/${part(session.id)}/events?limit=1`);
  if (!page) return;
  const first = page.events[0]?.event?.event_id;
  if (page.expired) session.lack("removed");
  else if (first !== undefined && first === session.first) session.lack(null);
}

/**
 * The messages before the events held here, and how many before those are left out.
 * @returns {Promise<{messages: object[], more: number} | null>} null where home could not be asked, or has no such session
 */
async function earlier(home, session) {
  const path = `/sessions/${part(session.id)}/messages`;
  for (let tries = 0; tries < TRIES; tries++) {
    const last = await ask(home, `${path}?offset=-1&limit=1`);
    if (!last) return null;
    await home.reached(last.cursor_event_id); // an event on its way is not to be shown twice
    const { past } = session;
    if (!past) return null; // its events are of another store, or too many
    const end = past.length(last.message_count, Number(last.cursor_event_id));
    const from = Math.max(0, end - MOST);
    const messages = [];
    let page = last;
    while (page && from + messages.length < end) {
      const limit = Math.min(PAGE, end - from - messages.length);
      page = await ask(home, `${path}?offset=${from + messages.length}&limit=${limit}&expected_cursor_event_id=${last.cursor_event_id}`);
      if (!page?.messages.length) page = null;
      else messages.push(...page.messages);
    }
    if (page) return { messages: messages.slice(0, past.unseen(messages)), more: from };
  }
  return null;
}

/** Find out whether it was home that removed the events which a gap tells of. @param {() => void} changed */
export async function explain(home, changed) {
  const { gap } = home;
  if (gap?.reason !== "expired" || gap.isRemoved !== undefined || home.state.state !== "online") return;
  const page = await ask(home, `/events?since_id=${gap.from_id}&limit=1`);
  if (!page) return;
  gap.isRemoved = page.expired === true;
  if (gap.isRemoved) home.transcript.removed(gap.from_id);
  changed();
}
