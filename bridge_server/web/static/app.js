/**
 * The viewer: pairing, the list of homes and sessions, the session being read. One page; the address after `#` says
 * which part of it is in front: `#/`, `#/pair`, `#/<server>/<session>`; `#pair=CODE` is how a pairing link comes in.
 *
 * @module app
 */

import { Composer, questions } from "./ask.js";
import { redeem } from "./bridge.js";
import { Cards, Modal } from "./cards.js";
import { dismiss, refresh, rehydrate } from "./dismissals.js";
import { Home, kept } from "./home.js";
import { Journal } from "./journal.js";
import { isNews, placeOf } from "./notices.js";
import { said } from "./texts.js";
import { TranscriptView, el, gapWords, setText } from "./view.js";

const HUB = new URL(".", location.href).href;
const SESSIONS_SHOWN = 30;
const ANNOUNCE_MS = 1500; // a state that lasts this long is worth saying

const $ = (id) => document.getElementById(id);

/** @type {Map<string, Home>} */
const homes = new Map();
const sections = new Map(); // server id -> what draws its part of the list
let journal = null;
let shown = null; // {home, id} of the session in front
let drawing = false;

const transcript = new TranscriptView($("scroller"), $("scroller").parentElement);
const composer = new Composer($("composer"), announce);
const wide = matchMedia("(min-width: 50rem)"); // as in the style sheet
const rail = new Cards($("rail"));
const sessionCards = new Map([...$("session-notices").children].map((place) => [place.dataset.place, new Cards(place)]));
const modal = new Modal($("modal"), draw);

// Words.

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const dayAndClock = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

function at(time) {
  const when = new Date(time);
  return (when.toDateString() === new Date().toDateString() ? clock : dayAndClock).format(when);
}

/** What is true of a home's connection, in words. */
function connection({ state, since, caughtUp, home, reason }) {
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

const PROBLEMS = {
  __proto__: null,
  malformed: "That is not a pairing code. It has twelve letters, no vowels, no digits, like BCDF-GHJK-LMNP.",
  wrong: "No open pairing has this code. Check it, or ask for a new one at home.",
  expired: "This code has expired: it works for five minutes. Ask for a new one at home.",
  reused: "This code has been used already. Ask for a new one at home.",
  unreachable: "The hub did not answer. Check the connection and try again.",
};

function problem({ code, message, retryAfterMs }) {
  if (code === "rate_limited") {
    const seconds = Math.ceil((retryAfterMs ?? 60_000) / 1000);
    return `Too many attempts. Try again in ${seconds < 90 ? `${seconds} seconds` : `${Math.ceil(seconds / 60)} minutes`}.`;
  }
  return PROBLEMS[code] ?? `The hub refused: ${message}`;
}

function deviceName() {
  const agent = navigator.userAgent;
  const browser = [/Edg/, /Firefox/, /Chrom/, /Safari/].find((one) => one.test(agent));
  const names = { Edg: "Edge", Firefox: "Firefox", Chrom: "Chrome", Safari: "Safari" };
  const system = /iPhone|iPad|Android|Mac|Windows|Linux/.exec(agent)?.[0];
  return `${names[browser?.source] ?? "Browser"}${system ? ` on ${system}` : ""}`;
}

/** Tell people who can't see the page; one thing at a time, nothing while it is read out word by word. */
function announce(text) {
  $("announcer").textContent = text.length > 300 ? `${text.slice(0, 300)}…` : text;
}

// Homes.

const heading = (event) => `Notification: ${event.display?.title ?? event.notification?.title ?? ""}`;

function add(device) {
  let waiting = null;
  let refreshing = Promise.resolve();
  const refreshed = () => {
    if (home.state.state !== "online") return;
    refreshing = refreshing.then(() => refresh(home, shown?.home === home ? shown.id : null, draw)).catch(() => {});
  };
  const home = new Home(device, HUB, journal, {
    changed: draw,
    happened(session, event) {
      const notified = /_notification_created$/.test(event.type);
      if (notified && !session && !document.hidden && (wide.matches || !shown)) announce(heading(event));
      if (document.hidden || shown?.home !== home || (session && shown.id !== session.id)) return;
      if (event.type === "final") announce(`Assistant: ${said(event.messages?.at(-1)) || "done"}`);
      else if (event.type === "error") announce(`Error: ${event.detail ?? ""}`);
      else if (event.type === "tool_approval_requested") announce("The agent asks for your permission.");
      else if (notified && session) announce(heading(event));
    },
    connected() {
      clearTimeout(waiting);
      waiting = setTimeout(() => announce(`${home.name}: ${connection(home.state).words}`), ANNOUNCE_MS);
      refreshed();
    },
    caughtUp: () => refreshed(),
  });
  homes.get(home.id)?.stop();
  homes.set(home.id, home);
  sections.get(home.id)?.node.remove();
  sections.set(home.id, section(home));
  $("homes").append(sections.get(home.id).node);
  home.start();
}

async function forget(home) {
  if (!confirm(`Forget ${home.name}? Its key and everything received from it are deleted from this browser.`)) return;
  homes.delete(home.id);
  sections.get(home.id).node.remove();
  sections.delete(home.id);
  location.hash = "#/";
  await home.forget();
  route();
}

/** A home's part of the list: its state, its notifications, its sessions. */
function section(home) {
  const [name, pill, detail] = [el("h2", { dir: "auto" }), el("span", { class: "pill" }), el("p", { class: "detail" })];
  const retry = el("button", { type: "button", class: "quiet", onclick: () => home.retry() }, "Try now");
  const again = el("a", { class: "button", href: "#/pair" }, "Pair again");
  const drop = el("button", { type: "button", class: "quiet", onclick: () => forget(home) }, "Forget");
  const trouble = el("div", { class: "trouble" }, detail, el("div", { class: "actions" }, retry, again, drop));
  const gap = gapNotice(home);
  const notices = el("div", { class: "cards", hidden: true });
  const noticeCards = new Cards(notices);
  const list = el("ul", { class: "sessions" });
  const empty = el("p", { class: "placeholder" });
  const more = el("button", { type: "button", class: "more", onclick: () => ((limit = Infinity), draw()) });
  const about = el("details", { class: "about" }, el("summary", {}, "About this pairing"));
  about.append(
    el("p", {}, `This browser is known at home as “${home.device.name}”. Its key and what it received are kept in this browser only. Forgetting deletes both here; to end its access for good, revoke it at home as well.`),
    el("button", { type: "button", class: "quiet danger", onclick: () => forget(home) }, "Forget this server"),
  );
  const node = el("section", { "data-server": home.id }, el("header", {}, name, pill), trouble, gap.node, notices, list, more, empty, about);
  const links = new Map(); // session id -> its row
  let limit = SESSIONS_SHOWN;
  let wasOver = false;

  function drawSessions() {
    const sessions = [...home.transcript.sessions.values()].filter((one) => one.items.length || one.notices.size);
    sessions.sort((a, b) => b.touched - a.touched);
    const visible = sessions.slice(0, limit);
    for (const session of visible) {
      if (!links.has(session.id)) links.set(session.id, sessionLink(home, session));
      links.get(session.id).draw();
    }
    const nodes = visible.map((session) => links.get(session.id).node);
    const same = nodes.length === list.children.length && nodes.every((one, index) => list.children[index] === one);
    // Moving a row under somebody's finger or focus would be rude: the order waits.
    if (!same && (nodes.length !== list.children.length || !list.matches(":hover, :focus-within"))) list.replaceChildren(...nodes);
    more.hidden = sessions.length <= limit;
    setText(more, `Show all ${sessions.length} sessions`);
    empty.hidden = sessions.length > 0;
    setText(empty, home.state.caughtUp ? "Nothing has happened yet. Sessions appear here as soon as home works on one." : "");
  }

  return {
    node,
    draw() {
      const { kind, words, detail: why } = connection(home.state);
      const over = ["revoked", "ended"].includes(home.state.state);
      setText(name, home.name);
      drawPill(pill, kind, words);
      trouble.hidden = !why;
      setText(detail, why ?? "");
      retry.hidden = home.state.state !== "offline";
      again.hidden = drop.hidden = !over;
      if (over && !wasOver) node.parentElement?.append(node); // what is over comes last
      wasOver = over;
      gap.draw();
      if (wide.matches || atList()) noticeCards.draw(wide.matches ? [] : entries(home, null, "rail"));
      drawSessions();
    },
  };
}

function sessionLink(home, session) {
  const [title, last, state] = [el("span", { class: "title", dir: "auto" }), el("span", { class: "last", dir: "auto" }), el("span", { class: "tag" })];
  const link = el("a", { href: `#/${encodeURIComponent(home.id)}/${encodeURIComponent(session.id)}` }, title, state, last);
  return {
    node: el("li", {}, link),
    draw() {
      const front = shown?.home === home && shown.id === session.id;
      const unseen = home.unseen.has(session.id) && !front;
      setText(title, titleOf(session));
      setText(last, (session.said?.text ?? "").slice(-4000).trim().slice(0, 160));
      const stands = session.approvals.size ? "asks" : session.working.size ? "working" : session.failed ? "failed" : "";
      setText(state, [stands, unseen ? "new" : ""].filter(Boolean).join(" · "));
      state.className = `tag ${stands}`;
      if (front) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    },
  };
}

const titleOf = (session) => session.title || session.id || "Other events";

function drawPill(pill, kind, words) {
  setText(pill, words);
  pill.className = `pill ${kind}`;
}

function gapNotice(home) {
  const [title, words] = [el("strong"), el("p")];
  const dismiss = el("button", { type: "button", class: "quiet", onclick: () => ((home.gap = null), draw()) }, "Understood");
  const node = el("div", { class: "gap-notice", hidden: true }, title, words, dismiss);
  return {
    node,
    draw() {
      node.hidden = !home.gap;
      if (!home.gap) return;
      const [head, body] = gapWords(home.gap.reason);
      if (title.textContent !== head) announce(`${head}. ${body}`);
      setText(title, head);
      setText(words, body);
    },
  };
}

// Notifications: where each stands is in notices.js. What is not in sight is not drawn, and is news until it is.

/** Whether the list of sessions is in front, on a phone. */
const atList = () => document.body.dataset.page === "start";

/** The cards of a home's notifications, or of one of its sessions', that stand in `place`. */
function entries(home, session, place, label = null) {
  const notices = home.notices(session);
  if (!notices.size) return [];
  const isHidden = kept.hidden(home.id);
  return [...notices.values()]
    .filter((notice) => placeOf(notices.owner, notice, wide.matches) === place)
    .filter((notice) => !isHidden(notice) && isNews(notice, Date.now()))
    .map((notice) => ({
      key: JSON.stringify([home.id, session, notice.id]),
      notice,
      label,
      verb: notice.local ? "Close" : home.may("approve") ? "Dismiss" : "Hide",
      act: () => dismiss(home, session, notice, wide.matches, draw, announce),
    }));
}

function drawNotifications() {
  const paired = [...homes.values()];
  const mine = (place) => (shown ? entries(shown.home, shown.id, place) : []);
  // On a desktop one rail holds what belongs to any connection, by name, and then the session's own.
  const all = () => paired.flatMap((home) => entries(home, null, "rail", home.state.home?.name || home.device.server_name || home.id));
  rail.draw(wide.matches ? [...all(), ...mine("rail")] : []);
  if (shown) {
    sessionCards.get("rail").draw(wide.matches ? [] : mine("rail"));
    sessionCards.get("region").draw(mine("region"));
  }
  const waiting = atList() ? paired.flatMap((home) => entries(home, null, "modal")) : mine("modal");
  modal.draw(wide.matches ? undefined : waiting[0]);
}

function drawQuestions(place, home, session) {
  const key = JSON.stringify([home.id, session.id, ...session.approvals.values()]);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.replaceChildren(...questions(home, session));
}

// The session in front.

function drawSession() {
  if (!shown) return;
  const { home, id } = shown;
  const session = home.transcript.session(id);
  home.unseen.delete(id);
  setText($("session-title"), titleOf(session));
  const { kind, words, detail } = connection(home.state);
  setText($("session-home"), `${home.name}${session.working.size && home.state.state === "online" ? " · working…" : ""}`);
  setText($("session-trouble"), detail ?? "");
  drawPill($("session-state"), kind, words);
  drawQuestions($("session-questions"), home, session);
  composer.draw();
  transcript.draw();
}

/** Draw once a frame, however much has come. */
function draw() {
  if (drawing) return;
  drawing = true;
  // A hidden page gets no frames, yet must not pile up what it has to draw.
  const later = document.hidden ? (what) => setTimeout(what, 1000) : requestAnimationFrame;
  later(() => {
    drawing = false;
    for (const one of sections.values()) one.draw();
    drawNotifications();
    drawSession();
    for (const home of homes.values()) {
      for (const session of home.transcript.sessions.values()) session.changed.clear();
    }
    drawStart();
  });
}

function drawStart() {
  if (document.body.dataset.page !== "start") return;
  setText($("start-words"), homes.size ? "Choose a session to read along." : "Pair this browser with a home to read along.");
}

// Which part is in front.

function route() {
  const link = /^#pair=([^&]*)/.exec(location.hash);
  if (link) {
    // The code leaves the address bar and the history at once.
    history.replaceState(null, "", "#/pair");
    $("code").value = decode(link[1]).slice(0, 40);
  }
  const [server, session] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  const home = homes.get(server);
  const page = home && session !== undefined ? "session" : server === "pair" || !kept.devices().length ? "pair" : "start";
  const before = document.body.dataset.page;
  document.body.dataset.page = page;
  for (const id of ["start", "pair", "session"]) $(id).hidden = id !== page;
  shown = page === "session" ? { home, id: session } : null;
  transcript.show(shown && home.transcript.session(session));
  composer.show(shown);
  $("pair-back").hidden = !homes.size;
  if (shown && home.state.state === "online") rehydrate(home, session).then(draw);
  draw();
  if (page === "pair") $($("code").value ? "pair-button" : "code").focus();
  else if (before !== page || page === "session") $(page === "session" ? "session-title" : "title").focus({ preventScroll: true });
  document.title = shown ? `${titleOf(home.transcript.session(session))} · Session Bridge` : "Session Bridge";
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

$("pair-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [code, name, button, said] = [$("code"), $("device"), $("pair-button"), $("pair-problem")];
  button.disabled = true;
  said.textContent = "";
  try {
    const device = await redeem(HUB, code.value.trim(), name.value.trim());
    kept.add({ ...device, name: name.value.trim() });
    code.value = "";
    add(kept.devices().find((one) => one.server_id === device.server_id));
    location.hash = "#/";
    announce(`Paired with ${device.server_name}.`);
  } catch (error) {
    said.textContent = error.code ? problem(error) : `This browser can't keep the key: ${error.message}`;
    code.focus();
  } finally {
    button.disabled = false;
  }
});

addEventListener("hashchange", route);
wide.addEventListener("change", draw);
addEventListener("pagehide", () => homes.forEach((home) => home.keep()));
document.addEventListener("visibilitychange", () => {
  if (document.hidden) homes.forEach((home) => home.keep());
  else draw();
});

$("device").value = deviceName();
route(); // before anything is awaited: a code in the address must not stay there
journal = await Journal.open();
kept.devices().forEach(add);
route();
