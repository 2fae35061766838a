// Drives npm `phoenix` over long polling, or over WebSocket with long polling to fall back on.
//
// Standard input: first a line of JSON {url, token, topic, fallback}, then one command a line: leave, quit.
// Standard output: one line of JSON for each thing seen, {"saw": ...} with more keys by kind.

import readline from "node:readline"
import { LongPoll, Socket } from "phoenix"
import WebSocket from "ws"

const say = (saw, more = {}) => process.stdout.write(JSON.stringify({ saw, ...more }) + "\n")

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const { url, token, topic, fallback } = JSON.parse((await lines.next()).value)

const way = fallback ? { transport: WebSocket, longPollFallbackMs: 500 } : { transport: LongPoll }
const socket = new Socket(url, { ...way, authToken: token })
socket.onOpen(() => say("opened", { by: socket.conn.constructor.name }))
socket.onClose((event) => say("closed", { code: event.code, reason: event.reason }))
socket.connect()

const cursor = {}
const channel = socket.channel(topic, () => ({ ...cursor }))
channel.on("session_event", ({ event }) => {
  cursor.since_id = event.event_id
  say("event", { id: event.event_id, data: event.data })
})
channel.on("replay_complete", (verdict) => {
  if (verdict.epoch !== null) cursor.epoch = verdict.epoch
  if (verdict.to_id !== null) cursor.since_id = verdict.to_id
  say("replayed", { verdict })
})
channel
  .join()
  .receive("ok", (reply) => say("joined", { reply }))
  .receive("error", (reply) => say("refused", { reply }))

for await (const command of lines) {
  if (command === "leave") channel.leave().receive("ok", () => say("left"))
  if (command === "ask") {
    // More than a POST takes: two batches, answered in order (here each with an error, for this topic knows no message).
    let answered = 0
    for (let number = 0; number < 150; number++)
      channel.push("nothing", { number }).receive("error", () => say("answered", { number, at: answered++ }))
  }
  if (command === "quit") break
}
socket.disconnect(() => process.exit(0))
