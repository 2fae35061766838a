/**
 * The list of what this browser is paired with: of each home its state, its notifications, its sessions.
 *
 * @module list
 */

import { Cards } from "./cards.js";
import { connection, drawPill } from "./connection.js";
import { el, gapWords, setText, titleOf } from "./view.js";

const SESSIONS_SHOWN = 30;

/**
 * What the list needs of the page it is in.
 * @typedef {{draw: () => void, begin: (home: import("./home.js").Home) => void, announce: (text: string) => void, forget: (home: import("./home.js").Home) => void,
 *   isFront: (home: import("./home.js").Home, id: string) => boolean,
 *   cards: (home: import("./home.js").Home) => import("./cards.js").Entry[] | null}} Page
 * `cards` are the notifications that stand in the list, null while it is not in sight.
 */

/** Where a session is read. */
export const addressOf = (home, id) => `#/${encodeURIComponent(home.id)}/${encodeURIComponent(id)}`;

/** A home's part of the list. @param {import("./home.js").Home} home @param {Page} page */
export function section(home, page) {
  const [name, pill, detail] = [el("h2", { dir: "auto" }), el("span", { class: "pill" }), el("p", { class: "detail" })];
  const retry = el("button", { type: "button", class: "quiet", onclick: () => home.retry() }, "Try now");
  const again = el("a", { class: "button", href: "#/pair" }, "Pair again");
  const drop = el("button", { type: "button", class: "quiet", onclick: () => page.forget(home) }, "Forget");
  const trouble = el("div", { class: "trouble" }, detail, el("div", { class: "actions" }, retry, again, drop));
  const gap = gapNotice(home, page);
  const notices = el("div", { class: "cards", hidden: true });
  const noticeCards = new Cards(notices);
  const begin = el("button", { type: "button", class: "quiet begin", onclick: () => page.begin(home) }, "New session");
  const list = el("ul", { class: "sessions" });
  const empty = el("p", { class: "placeholder" });
  const more = el("button", { type: "button", class: "more", onclick: () => ((limit = Infinity), page.draw()) });
  const about = el("details", { class: "about" }, el("summary", {}, "About this pairing"));
  about.append(
    el("p", {}, `This browser is known at home as “${home.device.name}”. Its key and what it received are kept in this browser only. Forgetting deletes both here; to end its access for good, revoke it at home as well.`),
    el("button", { type: "button", class: "quiet danger", onclick: () => page.forget(home) }, "Forget this server"),
  );
  const node = el("section", { "data-server": home.id }, el("header", {}, name, pill), trouble, gap.node, notices, begin, list, more, empty, about);
  const links = new Map(); // session id -> its row
  let limit = SESSIONS_SHOWN;
  let wasOver = false;

  function drawSessions() {
    const sessions = [...home.transcript.sessions.values()].filter((one) => one.items.length || one.notices.size || one.listed !== null);
    // Of whom nothing was told here, the last told is gone: older than all that was.
    sessions.sort((a, b) => b.touched - a.touched || b.listed - a.listed);
    const visible = sessions.slice(0, limit);
    for (const session of visible) {
      if (!links.has(session.id)) links.set(session.id, sessionLink(home, session, page));
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
      const cards = page.cards(home);
      if (cards) noticeCards.draw(cards);
      begin.hidden = !home.capabilities.canBegin;
      drawSessions();
    },
  };
}

function sessionLink(home, session, page) {
  const [title, last, state] = [el("span", { class: "title", dir: "auto" }), el("span", { class: "last", dir: "auto" }), el("span", { class: "tag" })];
  const link = el("a", { href: addressOf(home, session.id) }, title, state, last);
  return {
    node: el("li", {}, link),
    draw() {
      const front = page.isFront(home, session.id);
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

function gapNotice(home, page) {
  const [title, words] = [el("strong"), el("p")];
  const dismiss = el("button", { type: "button", class: "quiet", onclick: () => ((home.gap = null), page.draw()) }, "Understood");
  const node = el("div", { class: "gap-notice", hidden: true }, title, words, dismiss);
  return {
    node,
    draw() {
      node.hidden = !home.gap;
      if (!home.gap) return;
      const [head, body] = gapWords(home.gap);
      if (words.textContent !== body) page.announce(`${head}. ${body}`);
      setText(title, head);
      setText(words, body);
    },
  };
}
