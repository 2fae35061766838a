/**
 * Pairing: a code for a key, and why there is none.
 *
 * @module pairing
 */

import { redeem } from "./bridge.js";
import { kept } from "./home.js";

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

const CODE = /^[BCDFGHJKLMNPQRSTVWXZ]{12}$/;

/** What is wrong with a text as a pairing code, in words; "" if it is one. */
export const flaw = (text) => (CODE.test(text.replace(/[\s-]/g, "").toUpperCase()) ? "" : PROBLEMS.malformed);

/**
 * Make the form pair with a home of the hub at `hub`.
 * @param {HTMLFormElement} form @param {string} hub @param {(device: import("./home.js").Paired) => void} paired
 */
export function pairing(form, hub, paired) {
  const [code, name, button] = [form.querySelector("#code"), form.querySelector("#device"), form.querySelector("#pair-button")];
  const said = form.querySelector("#pair-problem");
  name.value = deviceName();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    said.textContent = "";
    try {
      const device = await redeem(hub, code.value.trim(), name.value.trim());
      kept.add({ ...device, name: name.value.trim() });
      code.value = "";
      paired(kept.devices().find((one) => one.server_id === device.server_id));
    } catch (error) {
      said.textContent = error.code ? problem(error) : `This browser can't keep the key: ${error.message}`;
      code.focus();
    } finally {
      button.disabled = false;
    }
  });
}
