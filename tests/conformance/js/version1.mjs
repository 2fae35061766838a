// Drives npm `phoenix-channels` and `phoenix-socket`, which speak version 1.0.0, as an app would: each client joins one
// topic, resumes with its cursor, and says what it sees.
//
// A client's order: {name, package, url, token, topic}. See program.mjs for the rest.

import { createRequire } from "node:module"
import WebSocket from "ws"
import { clients, moves, obey, sayer } from "./program.mjs"

const require = createRequire(import.meta.url)
globalThis.window = globalThis // where phoenix-socket looks for what a browser has

function start({ name, package: installed, url, token, topic }) {
  const say = sayer(name)
  const { Socket } = require(installed)
  const options = { params: { token } }
  if (installed === "phoenix-socket") options.transport = WebSocket

  const socket = new Socket(url, options)
  socket.onOpen(() => say("opened"))
  socket.onClose((event) => say("closed", { code: event.code, reason: event.reason }))
  // Neither waits for the answer to a leave: what the hub says is seen here, before the channel sees it.
  socket.onMessage((message) => {
    if (message.event === "phx_close" && message.topic === topic) say("left", { message })
  })
  socket.connect()

  const cursor = {} // the very object that each join sends
  const channel = socket.channel(topic, cursor)
  for (const [event, move] of Object.entries(moves(cursor)))
    channel.on(event, (payload) => {
      move(payload)
      say("event", { event, payload })
    })
  channel.onError(() => say("errored"))
  channel
    .join()
    .receive("ok", (reply) => say("joined", { reply }))
    .receive("error", (reply) => say("refused", { reply }))
    .receive("timeout", () => say("join_timeout"))
  return {
    leave: () => channel.leave(),
    quit: () => socket.disconnect(),
  }
}

await obey(clients.map(start))
