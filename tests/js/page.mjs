// The page's modules in node, which takes them for no modules by their name: imported from their text, and so are theirs.

import { readFileSync } from "node:fs";

const addresses = new Map();

function address(name) {
  if (!addresses.has(name)) {
    const text = readFileSync(new URL(`../../bridge_server/web/static/${name}.js`, import.meta.url), "utf8");
    const linked = text.replace(/^(import .* from) "\.\/(\w+)\.js"/gm, (_, what, other) => `${what} "${address(other)}"`);
    addresses.set(name, `data:text/javascript;base64,${Buffer.from(linked).toString("base64")}`);
  }
  return addresses.get(name);
}

/** What the module `name` exports. Modules that import each other can't be had. */
export const load = (name) => import(address(name));
