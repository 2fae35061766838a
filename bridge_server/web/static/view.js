/**
 * How a session is drawn. Whatever an event says becomes text nodes, never markup.
 *
 * @module view
 */

const SHOWN = 150; // rows drawn at first, and added by "show earlier"
const MOST_SHOWN = 600; // rows in the page at a time, whatever the length of the session
const LONG_TEXT = 20_000; // characters drawn of one text, until asked for more

/** An element. `props` are properties; `class`, `aria-…`, `data-…` and `role` attributes; `on…` listeners. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (/^(class|role|for|aria-|data-)/.test(name)) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set a text, touching the page only if it changes. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** What a session is called: as home names it, else its first message, else its id. @param {import("./transcript.js").Session} session */
export const titleOf = (session) => session.named || session.title || session.id || "Other events";

const GAPS = {
  __proto__: null,
  expired: [
    "Some events are missing here",
    "The hub no longer holds what happened meanwhile, and home did not send it. What there still is follows.",
  ],
  epoch_changed: [
    "A new history begins here",
    "The event store at home was replaced, so what came before may be incomplete.",
  ],
  ahead: [
    "Home went back to an earlier state",
    "The event store at home was restored from a copy that is older than what this page had seen.",
  ],
  hub_reset: [
    "Events may be missing here",
    "The hub was restarted and home is not connected, so nobody can tell yet what happened meanwhile. If home still has it, it will follow.",
  ],
};

const REMOVED = ["Some events are missing here", "Home has removed them meanwhile: it keeps only the newest ones. What there still is follows."];

/** @param {{reason: string, isRemoved?: boolean}} gap `isRemoved`: it was home that removed what is missing */
export const gapWords = ({ reason, isRemoved }) => (isRemoved ? REMOVED : GAPS[reason]) ?? ["Events are missing here", "The hub can't deliver what happened meanwhile."];

/** A text that grows in place: what it has already is not touched. */
class Growing {
  #text = document.createTextNode("");
  #more;
  #whole = false;

  constructor(tag, className) {
    this.node = el(tag, { class: className, dir: "auto" }, this.#text);
  }

  show(text, streaming) {
    const cut = !this.#whole && text.length > LONG_TEXT;
    const shown = !cut ? text : streaming ? `…${text.slice(-LONG_TEXT)}` : `${text.slice(0, LONG_TEXT)}…`;
    const before = this.#text.data;
    if (shown.length > before.length && shown.startsWith(before)) this.#text.appendData(shown.slice(before.length));
    else if (shown !== before) this.#text.data = shown;
    if (cut && !this.#more) {
      this.#more = el("button", { type: "button", class: "more", onclick: () => this.#showAll() });
      this.node.after(this.#more);
    }
    if (this.#more) {
      this.#more.hidden = !cut;
      this.all = () => this.show(text, streaming);
      setText(this.#more, `Show all ${text.length.toLocaleString()} characters`);
    }
  }

  #showAll() {
    this.#whole = true;
    this.all();
  }
}

const WHO = { __proto__: null, assistant: "Assistant", user: "You", system: "System", tool: "Tool" };
const REQUEST = { running: "Working…", completed: "Done", cancelled: "Cancelled", failed: "Failed" };

const TOOL = { running: "running…", asking: "waiting for you", done: "done", failed: "failed", unanswered: "no result" };

// Why what came before a session's first event is none here.
const STARTS = {
  __proto__: null,
  removed: "What came before is not kept as events any more.",
  unknown: "What came before, if anything did, was not received as events.",
  dropped: "What came before is too much for this page to show.",
};

// One maker per kind of item: returns the row, and what draws its item into it again.
const ROWS = {
  message(item) {
    const text = new Growing("div", "text");
    const who = el("span", { class: "who" }, WHO[item.role] ?? String(item.role));
    const node = el("li", { class: `row message ${item.role === "user" ? "user" : "other"}` }, who, text.node);
    return [
      node,
      () => {
        text.show(item.text, item.streaming);
        node.classList.toggle("streaming", item.streaming);
        if (item.broken && !node.querySelector(".broken")) node.append(el("span", { class: "broken" }, "broke off here"));
      },
    ];
  },
  tool(item) {
    const [name, state, peek] = [el("span", { class: "name" }), el("span", { class: "state" }), el("span", { class: "peek" })];
    const [args, output] = [new Growing("pre", "args"), new Growing("pre", "output")];
    const [argsPart, outputPart] = [el("div", {}, el("h4", {}, "Asked"), args.node), el("div", {}, el("h4", {}, "Result"), output.node)];
    const details = el("details", {}, el("summary", {}, name, state, peek), argsPart, outputPart);
    const draw = () => {
      const said = item.result ?? item.output;
      setText(name, item.name);
      setText(state, TOOL[item.state]);
      details.dataset.state = item.state;
      // While folded only one line is shown: of a running tool the latest, of a finished one the first.
      const running = ["running", "asking"].includes(item.state);
      const lines = (!running ? said.slice(0, 400) : said.slice(-400)).split("\n").filter((line) => line.trim());
      setText(peek, (!running ? lines[0] : lines.at(-1)) ?? "");
      if (!details.open) return;
      argsPart.hidden = !item.args;
      outputPart.hidden = !said;
      args.show(item.args, false);
      output.show(said, running);
    };
    details.addEventListener("toggle", draw);
    return [el("li", { class: "row tool" }, details), draw];
  },
  request(item) {
    const words = el("span");
    const node = el("li", { class: "row request" }, words);
    return [
      node,
      () => {
        node.dataset.state = item.state;
        node.hidden = item.state === "over"; // another row says how it ended
        setText(words, REQUEST[item.state] ?? "");
      },
    ];
  },
  error(item) {
    const printed = item.printed ? el("details", {}, el("summary", {}, "What it printed"), el("pre", { class: "output" }, item.printed.slice(-LONG_TEXT))) : null;
    return [el("li", { class: "row error" }, el("strong", {}, "Error"), el("div", { class: "text", dir: "auto" }, item.text), printed), () => {}];
  },
  warning(item) {
    return [el("li", { class: "row warning" }, el("strong", {}, "Warning"), el("div", { class: "text", dir: "auto" }, item.text)), () => {}];
  },
  note(item) {
    return [el("li", { class: "row note", dir: "auto" }, item.text), () => {}];
  },
  start(item) {
    const node = el("li", { class: "row note start" });
    return [
      node,
      () => {
        node.hidden = item.reason === null;
        setText(node, `${item.hasMessages ? "Up to here: the messages that home still has. " : ""}${STARTS[item.reason] ?? ""}`);
      },
    ];
  },
  mark() {
    return [el("li", { class: "row mark" }, "New since your last visit"), () => {}];
  },
  other(item) {
    const json = el("pre", { class: "output" });
    const peek = item.text ? el("span", { class: "peek", dir: "auto" }, item.text) : null;
    const details = el("details", {}, el("summary", {}, el("span", { class: "name" }, item.type), peek), json);
    details.addEventListener("toggle", () => setText(json, JSON.stringify(item.event, null, 2).slice(0, LONG_TEXT)));
    return [el("li", { class: "row tool unknown" }, details), () => {}];
  },
  gap(item) {
    const [title, words] = [el("strong"), el("div")];
    const node = el("li", { class: "row gap" }, title, words);
    return [
      node,
      () => {
        node.hidden = Boolean(item.healed);
        [title, words].forEach((part, at) => setText(part, gapWords(item)[at]));
      },
    ];
  },
};

/**
 * The transcript of one session inside `scroller`: a window of its items, which follows the end unless the reader has
 * gone back. What is drawn is bounded; what is not is a button away.
 */
export class TranscriptView {
  #scroller;
  #list = el("ol", { class: "rows", "aria-label": "Transcript" });
  #earlier = el("button", { type: "button", class: "more", onclick: () => this.#showEarlier() }, "Show earlier");
  #later = el("button", { type: "button", class: "more", onclick: () => this.#showLater() }, "Show later");
  #latest = el("button", { type: "button", class: "latest", onclick: () => this.toEnd() }, "Jump to latest ↓");
  #news = el("button", { type: "button", class: "latest news", onclick: () => this.#toMark() }, "↑ New since your last visit");
  #session = null;
  #rows = []; // {item, node, draw}, in order: the drawn window
  #follow = true; // the window ends at the last item
  #pinned = true; // the reader is at the end, and stays there until they go up
  #top = 0; // scrollTop when it was last looked at
  #anchors = []; // {node, offset}: the first rows in view of a reader who is not at the end

  constructor(scroller, latestPlace) {
    this.#scroller = scroller;
    scroller.append(this.#earlier, this.#list, this.#later);
    latestPlace.append(this.#news, this.#latest);
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    // Whoever opens something wants to read it, not to be taken to its end.
    this.#list.addEventListener("click", ({ target }) => target.closest("summary, button") && this.#stop());
    // A keyboard, a turned phone, a notification above, a tool's output unfolded: the reader stays where they are.
    const resized = new ResizeObserver(() => (this.#keepPlace(), this.#controls()));
    for (const box of [scroller, this.#list]) resized.observe(box);
  }

  /** @param {import("./transcript.js").Session | null} session */
  show(session) {
    this.#session = session;
    this.#rows = [];
    this.#list.replaceChildren();
    this.toEnd();
  }

  /** Draw what changed. */
  draw() {
    const session = this.#session;
    if (!session) return;
    if (this.#follow) this.#window(this.#pinned ? SHOWN : MOST_SHOWN);
    for (const row of this.#rows) if (session.changed.has(row.item)) row.draw();
    session.changed.clear();
    this.#keepPlace();
    this.#controls();
  }

  toEnd() {
    this.#follow = this.#pinned = true;
    this.draw();
  }

  /** Go to where this visit began, drawing it if it is not drawn. */
  #toMark() {
    const { items, mark } = this.#session;
    mark.seen = true;
    if (!this.#rows.some(({ item }) => item === mark)) {
      const from = Math.max(0, items.indexOf(mark) - 1);
      const to = Math.min(items.length, from + MOST_SHOWN);
      this.#draw(from, to);
      this.#follow = to === items.length;
    }
    this.#pinned = false;
    const { node } = this.#rows.find(({ item }) => item === mark);
    this.#scroller.scrollTop += this.#offset(node) - 8;
    this.#controls();
    focusOn(node);
  }

  /** Whether the place where this visit began lies above what is in view. */
  #markAbove() {
    const mark = this.#session?.mark;
    if (!mark || mark.seen || mark.n < (this.#session.items[0]?.n ?? 0)) return false;
    const row = this.#rows.find(({ item }) => item === mark);
    return row ? this.#offset(row.node) < 0 : mark.n < (this.#rows[0]?.item.n ?? 0);
  }

  #atEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight < 40;
  }

  #scrolled() {
    // Only a reader goes up: news and a smaller page leave scrollTop as it is.
    if (this.#scroller.scrollTop < this.#top - 1) this.#pinned = false;
    this.#controls();
  }

  #stop() {
    this.#pinned = false;
    this.#anchors = this.#inView();
  }

  /** After anything that may have moved the rows. */
  #keepPlace() {
    if (this.#pinned) {
      this.#scroller.scrollTop = this.#scroller.scrollHeight;
      return;
    }
    const anchor = this.#anchors.find(({ node }) => node.isConnected && !node.hidden);
    const moved = anchor ? this.#offset(anchor.node) - anchor.offset : 0;
    if (Math.abs(moved) >= 1) this.#scroller.scrollTop += moved;
  }

  #offset(node) {
    return node.getBoundingClientRect().top - this.#scroller.getBoundingClientRect().top;
  }

  #inView() {
    const { top } = this.#scroller.getBoundingClientRect();
    const first = this.#rows.findIndex(({ node }) => !node.hidden && node.getBoundingClientRect().bottom > top);
    // More than one, because a row may be hidden later.
    return first < 0 ? [] : this.#rows.slice(first, first + 4).map(({ node }) => ({ node, offset: this.#offset(node) }));
  }

  /** Make the window end at the last item, with at most `most` rows; a reader's rows are not taken from under them. */
  #window(most) {
    const items = this.#session?.items ?? [];
    // Who is at the end has all of a short session in view, also what came to stand before its first row.
    const first = (most === SHOWN ? null : this.#rows[0]?.item.n) ?? Math.max(items[0]?.n ?? 0, (items.at(-1)?.n ?? 0) - SHOWN + 1);
    const from = items.length - Math.min(items.length, (items.at(-1)?.n ?? 0) - Math.max(first, items[0]?.n ?? 0) + 1);
    if (items.length - from > MOST_SHOWN && most === MOST_SHOWN) {
      this.#follow = false;
      return;
    }
    this.#draw(Math.max(from, items.length - most), items.length);
  }

  /** Make the drawn rows those of items[from..to). */
  #draw(from, to) {
    const items = this.#session?.items ?? [];
    const [low, high] = [items[from]?.n ?? 0, items[to - 1]?.n ?? -1];
    const gone = this.#rows.filter(({ item }) => item.n < low || item.n > high);
    for (const row of gone) row.node.remove();
    const kept = this.#rows.filter(({ item }) => item.n >= low && item.n <= high);
    const [before, after] = kept.length ? [kept[0].item.n, kept.at(-1).item.n] : [high + 1, high];
    const head = items.slice(from, from + Math.max(0, before - low)).map(row);
    const tail = kept.length ? items.slice(to - (high - after), to).map(row) : [];
    this.#list.prepend(...head.map(({ node }) => node));
    this.#list.append(...tail.map(({ node }) => node));
    this.#rows = [...head, ...kept, ...tail];
  }

  #showEarlier() {
    const items = this.#session.items;
    const from = Math.max(0, this.#index(0) - SHOWN);
    const to = Math.min(this.#index(-1) + 1, from + MOST_SHOWN);
    this.#follow = to === items.length;
    const focused = this.#rows[0]?.node;
    this.#stop();
    this.#draw(from, to);
    this.#keepPlace();
    this.#controls();
    if (this.#earlier.hidden && focused) focusOn(focused);
  }

  #showLater() {
    const items = this.#session.items;
    const to = Math.min(items.length, this.#index(-1) + 1 + SHOWN);
    const focused = this.#rows.at(-1).node;
    this.#stop();
    this.#draw(Math.max(0, to - MOST_SHOWN), to);
    this.#follow = to === items.length;
    this.#keepPlace();
    this.#controls();
    if (this.#later.hidden) focusOn(focused);
  }

  #index(at) {
    const items = this.#session.items;
    return this.#rows.length ? Math.max(0, this.#rows.at(at).item.n - items[0].n) : items.length;
  }

  #controls() {
    const items = this.#session?.items ?? [];
    this.#earlier.hidden = !items.length || (this.#rows[0]?.item.n ?? 0) <= items[0].n;
    this.#later.hidden = this.#follow;
    this.#pinned = this.#follow && (this.#pinned || this.#atEnd());
    this.#latest.hidden = this.#pinned;
    const above = this.#markAbove();
    if (!above && !this.#news.hidden && !this.#pinned) this.#session.mark.seen = true; // who went up there has seen it
    this.#news.hidden = !above;
    this.#top = this.#scroller.scrollTop;
    this.#anchors = this.#pinned ? [] : this.#inView();
  }
}

function row(item) {
  const [node, draw] = ROWS[item.kind](item);
  draw();
  return { item, node, draw };
}

function focusOn(node) {
  node.tabIndex = -1;
  node.focus({ preventScroll: true });
}
