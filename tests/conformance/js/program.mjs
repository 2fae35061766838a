// What the drivers of the JavaScript clients share: their orders, what they say, and the cursor of a client.
//
// Standard input: first a line of JSON {clients: [{name, url, token, topic, ...}]}, then one command a line, for every
// client: leave, quit, and what a driver knows beside these.
// Standard output: one line of JSON for each thing seen, {"client": name, "saw": ...} with more keys by kind.

import readline from "node:readline"

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()

export const { clients } = JSON.parse((await lines.next()).value)

export const sayer = (client) => (saw, more = {}) =>
  process.stdout.write(JSON.stringify({ client, saw, ...more }) + "\n")

/** What a rejoin sends: the last event seen, or the place that replay_complete names. Moves `cursor` in place. */
export const moves = (cursor) => ({
  session_event: ({ event }) => {
    cursor.since_id = event.event_id
  },
  replay_complete: ({ epoch, to_id }) => {
    if (epoch !== null) cursor.epoch = epoch
    if (to_id !== null) cursor.since_id = to_id
  },
  server_status: () => {},
})

/** Do what standard input says, until it says quit; `started` are the clients, as objects of functions by command. */
export async function obey(started) {
  for await (const command of lines) {
    for (const client of started) await client[command]?.()
    if (command === "quit") process.exit(0)
  }
}
