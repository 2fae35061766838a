/**
 * The state of a home's connection, as a person reads it.
 *
 * @module connection
 */

import { setText } from "./view.js";

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const dayAndClock = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

function at(time) {
  const when = new Date(time);
  return (when.toDateString() === new Date().toDateString() ? clock : dayAndClock).format(when);
}

/**
 * What is true of a home's connection, in words.
 * @param {import("./bridge.js").State} state
 * @returns {{kind: string, words: string, detail?: string}} `detail` where there is more to say
 */
export function connection({ state, since, caughtUp, home, reason }) {
  if (state === "connecting") return { kind: "wait", words: "Connecting…" };
  if (state === "online") return caughtUp ? { kind: "good", words: "Online" } : { kind: "wait", words: "Catching up…" };
  if (state === "waiting") {
    const away = home && !home.online;
    if (!away) return { kind: "wait", words: "Catching up…", detail: "Home is sending what happened meanwhile." };
    const from = home.since ? ` since ${at(home.since)}` : "";
    return { kind: "away", words: "Waiting for home", detail: `Home has not been connected to the hub${from}. What happens there will follow.` };
  }
  if (state === "offline") {
    return { kind: "bad", words: `Offline since ${at(since)}`, detail: "The hub can't be reached from here. This page keeps trying, and catches up by itself." };
  }
  if (state === "revoked") {
    const unknown = reason === "credential_invalid";
    return {
      kind: "bad",
      words: unknown ? "No longer paired" : "Access revoked",
      detail: unknown
        ? "The hub does not know this browser any more. Nothing new arrives here until you pair again."
        : "This browser's access was revoked at home. Nothing new arrives here; what you see was received before.",
    };
  }
  return { kind: "bad", words: "Disconnected", detail: "The hub ended this connection for good. Pair again to go on." };
}

/** Say it in a pill. */
export function drawPill(pill, kind, words) {
  setText(pill, words);
  pill.className = `pill ${kind}`;
}
