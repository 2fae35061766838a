// Drives npm `phoenix` as an app would: joins one topic, resumes with its cursor, says what it sees.
//
// Standard input: first a line of JSON {url, token, topic}, then one command a line: leave, quit.
// Standard output: one line of JSON for each thing seen, {"saw": ...} with more keys by kind.

import readline from "node:readline"
import { Socket } from "phoenix"
import WebSocket from "ws"

const say = (saw, more = {}) => process.stdout.write(JSON.stringify({ saw, ...more }) + "\n")

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const { url, token, topic } = JSON.parse((await lines.next()).value)

const socket = new Socket(url, { transport: WebSocket, authToken: token })
socket.onOpen(() => say("opened", { subprotocol: socket.conn.protocol }))
socket.onClose((event) => say("closed", { code: event.code, reason: event.reason }))
socket.connect()

// The cursor is what a rejoin sends: the last event seen, or the place that replay_complete names.
const cursor = {}
const channel = socket.channel(topic, () => ({ ...cursor }))
const watch = (event, move) =>
  channel.on(event, (payload) => {
    move(payload)
    say("event", { event, payload })
  })
watch("session_event", ({ event }) => {
  cursor.since_id = event.event_id
})
watch("replay_complete", ({ epoch, to_id }) => {
  if (epoch !== null) cursor.epoch = epoch
  if (to_id !== null) cursor.since_id = to_id
})
watch("server_status", () => {})
channel.onError(() => say("errored"))
channel.onClose(() => say("channel_closed"))
channel
  .join()
  .receive("ok", (reply) => say("joined", { reply }))
  .receive("error", (reply) => say("refused", { reply }))
  .receive("timeout", () => say("join_timeout"))

for await (const command of lines) {
  if (command === "leave") channel.leave().receive("ok", () => say("left"))
  if (command === "quit") break
}
socket.disconnect(() => process.exit(0))
