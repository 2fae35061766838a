/**
 * Dismissing notifications: on a desktop home is asked first, and what it does not do stays in sight; on a phone the
 * notification is hidden at once, and what home did not get is sent again until it has it. And what home itself lists.
 *
 * @module dismissals
 */

import { failure, refusal } from "./ask.js";
import { kept } from "./home.js";

const part = encodeURIComponent;

const pathOf = (session) => (session ? `/sessions/${part(session)}/notifications` : "/application/notifications");

/** Failures after which the same dismissal may go through later. */
const PASSING = new Set(["server_offline", "timeout", "rate_limited", "closed", "in_flight"]);

/**
 * Ask home to dismiss exactly this revision. `done`: home has answered for good; `unknown`: it keeps no such notification,
 * so that hiding it here is all there is to do; `again`: home could not be reached; `problem` says what went wrong.
 * @returns {Promise<{done: boolean, unknown?: boolean, again?: boolean, problem?: string}>}
 */
async function ask(home, { session, id, token }) {
  const notices = home.notices(session);
  try {
    const answer = await home.request("POST", `${pathOf(session)}/${part(id)}/dismiss`, token === undefined ? {} : { expected_revision: token });
    const record = answer.body?.notification ?? answer.body?.error?.notification;
    if (record) notices.take(record, record.display, id); // as home has it: over, or newer than what was shown
    if (answer.status === 404) return { done: true, unknown: true };
    if (answer.ok) return { done: true };
    if (answer.status === 409 && record) return { done: true, problem: notices.get(id) && "It has changed meanwhile: look again." };
    return { done: false, problem: refusal(answer) };
  } catch (error) {
    if (error.code === "unsupported") return { done: true, unknown: true };
    return { done: false, again: PASSING.has(error.code), problem: failure(error, "it") };
  }
}

/**
 * The reader dismisses what they see. @param {boolean} wide a desktop @param {() => void} changed
 * @param {(text: string) => void} announce
 */
export async function dismiss(home, session, notice, wide, changed, announce) {
  const notices = home.notices(session);
  if (notice.local) return notices.drop(notice.id), changed();
  if (!home.may("approve")) return kept.hide(home.id, notice), changed();
  const wanted = { session, id: notice.id, token: notice.token, revision: notice.revision };
  notice.problem = "";
  if (wide) notice.busy = true;
  else kept.dismissing(home.id, wanted);
  changed();
  const { done, unknown, again, problem } = await ask(home, wanted);
  notice.busy = false;
  if (!wide && !again) kept.settled(home.id, wanted, done);
  if (wide && unknown) kept.hide(home.id, wanted);
  const now = notices.get(notice.id); // perhaps a newer revision of it
  if (problem && now && (wide || !again)) announce((now.problem = problem));
  changed();
}

/** Home is there (again): send what it did not get, and read what it has; `shown` is the session in front. */
export async function refresh(home, shown, changed) {
  for (const wanted of kept.dismissals(home.id)) {
    const { done, again, problem } = await ask(home, wanted);
    if (again) break;
    kept.settled(home.id, wanted, done);
    const now = home.notices(wanted.session).get(wanted.id);
    if (now && problem) now.problem = problem;
  }
  for (const session of shown === null ? [null] : [null, shown]) await rehydrate(home, session);
  changed();
}

/** Read the list that home keeps. A home that keeps none, or can't be asked, is taken at its events' word. */
export async function rehydrate(home, session) {
  const notices = home.notices(session);
  const before = notices.known();
  const answer = await home.request("GET", pathOf(session)).catch(() => null);
  if (answer?.ok && Array.isArray(answer.body?.notifications)) notices.rehydrate(answer.body.notifications, before);
}
