/**
 * The viewer: pairing, the list of homes and sessions, the session being read. One page; the address after `#` says
 * which part of it is in front: `#/`, `#/pair`, `#/<server>/<session>`; `#pair=CODE` is how a pairing link comes in.
 *
 * @module app
 */

import { Composer, questions } from "./ask.js";
import { Cards, Modal } from "./cards.js";
import { connection } from "./connection.js";
import { dismiss, refresh, rehydrate } from "./dismissals.js";
import { Head } from "./head.js";
import { explain, recall } from "./history.js";
import { Home, kept } from "./home.js";
import { Journal } from "./journal.js";
import { addressOf, section } from "./list.js";
import { isNews, placeOf } from "./notices.js";
import { flaw, pairing } from "./pairing.js";
import { drafts } from "./tab.js";
import { said } from "./texts.js";
import { TranscriptView, setText } from "./view.js";

const HUB = new URL(".", location.href).href;
const ANNOUNCED = 5;
const ANNOUNCE_MS = 1500; // a state that lasts this long is worth saying

const $ = (id) => document.getElementById(id);

/** @type {Map<string, Home>} */
const homes = new Map();
const sections = new Map(); // server id -> what draws its part of the list
let journal = null;
let shown = null; // {home, id} of the session in front
let drawing = false;

const transcript = new TranscriptView($("scroller"), $("scroller").parentElement);
const composer = new Composer($("composer"), $("composer-why"), announce);
const head = new Head($, announce);
const wide = matchMedia("(min-width: 50rem)"); // as in the style sheet
const rail = new Cards($("rail"));
const sessionCards = new Map([...$("session-notices").children].map((place) => [place.dataset.place, new Cards(place)]));
const modal = new Modal($("modal"), draw);

/** Tell people who can't see the page; nothing while it is read out word by word. */
function announce(text) {
  const line = document.createElement("p");
  line.textContent = text.length > 300 ? `${text.slice(0, 300)}…` : text;
  const lines = $("announcer"); // one behind the other: what is replaced before it was read is never heard
  lines.append(line);
  while (lines.childElementCount > ANNOUNCED) lines.firstElementChild.remove();
}

// Homes.

const heading = (event) => `Notification: ${event.display?.title ?? event.notification?.title ?? ""}`;

function add(device) {
  let waiting = null;
  let refreshing = Promise.resolve();
  const refreshed = () => {
    const inFront = shown?.home === home ? shown.id : null;
    if (inFront) recall(home, inFront, draw);
    if (home.state.state !== "online") return;
    home.capabilities.refresh(inFront).then(() => {
      if (shown?.home === home) recall(home, shown.id, draw); // it is listed now, perhaps
      draw();
    });
    explain(home, draw);
    refreshing = refreshing.then(() => refresh(home, inFront, draw)).catch(() => {});
  };
  const home = new Home(device, HUB, journal, {
    changed: draw,
    happened(session, event) {
      if (event.type === "session_created" && session) home.capabilities.made(session.id).then(draw);
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
  sections.set(home.id, section(home, listed));
  $("homes").append(sections.get(home.id).node);
  home.start();
}

/** What the list asks of this page. @type {import("./list.js").Page} */
const listed = {
  draw,
  announce,
  forget,
  begin: (home) => (location.hash = addressOf(home, home.capabilities.newSession())),
  isFront: (home, id) => shown?.home === home && shown.id === id,
  cards: (home) => (wide.matches ? [] : atList() ? entries(home, null, "rail") : null),
};

async function forget(home) {
  if (!confirm(`Forget ${home.name}? Its key and everything received from it are deleted from this browser.`)) return;
  homes.delete(home.id);
  drafts.forget((key) => JSON.parse(key)[0] === home.id);
  sections.get(home.id).node.remove();
  sections.delete(home.id);
  location.hash = "#/";
  await home.forget();
  route();
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
  head.draw(home, session, composer.standing);
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
  const canBegin = [...homes.values()].some((home) => home.capabilities.canBegin);
  const choose = canBegin ? "Choose a session to read along, or begin a new one." : "Choose a session to read along.";
  setText($("start-words"), homes.size ? choose : "Pair this browser with a home to read along.");
}

// Which part is in front.

function route() {
  const link = /^#pair=([^&]*)/.exec(location.hash);
  if (link) {
    // The code leaves the address bar and the history at once.
    history.replaceState(null, "", "#/pair");
    $("code").value = decode(link[1]).slice(0, 40);
    setText($("pair-problem"), flaw($("code").value));
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
  if (shown && home.state.state === "online") {
    home.capabilities.look(session).then(draw);
    rehydrate(home, session).then(draw);
  }
  if (shown) recall(home, session, draw);
  draw();
  if (page === "pair") $($("code").value ? "pair-button" : "code").focus();
  else if (composer.begins) composer.focus();
  else if (before !== page || page === "session") $(page === "session" ? "session-title" : "title").focus({ preventScroll: true });
  if (!shown) document.title = "Session Bridge";
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

addEventListener("hashchange", route);
wide.addEventListener("change", draw);
addEventListener("pagehide", () => homes.forEach((home) => home.keep()));
document.addEventListener("visibilitychange", () => {
  if (document.hidden) homes.forEach((home) => home.keep());
  else draw();
});

pairing($("pair-form"), HUB, (device) => {
  add(device);
  location.hash = "#/";
  announce(`Paired with ${device.server_name}.`);
});
route(); // before anything is awaited: a code in the address must not stay there
journal = await Journal.open();
kept.devices().forEach(add);
route();
