// Drives npm `phoenix` as an app would, in several versions and over both of its transports at once: each client joins
// one topic, resumes with its cursor, and says what it sees.
//
// A client's order: {name, package, url, token, topic, auth: "subprotocol" | "query",
//                    transport: "websocket" | "longpoll" | "fallback"}. See program.mjs for the rest.

import WebSocket from "ws"
import { clients, moves, obey, sayer } from "./program.mjs"

if (clients.some(({ xhr }) => xhr)) {
  // Versions before 1.8 poll with a browser's XMLHttpRequest, which they look for in a browser's global object.
  globalThis.XMLHttpRequest = (await import("xhr2")).default
  globalThis.self = globalThis
}

async function start({ name, package: installed, url, token, topic, auth, transport }) {
  const say = sayer(name)
  const module = await import(installed)
  const { LongPoll, Socket } = module.Socket ? module : module.default // 1.4 is a CommonJS bundle
  const options = auth === "query" ? { params: { token } } : { authToken: token }
  if (transport === "longpoll") options.transport = LongPoll
  else options.transport = WebSocket
  if (transport === "fallback") options.longPollFallbackMs = 300

  const socket = new Socket(url, options)
  socket.onOpen(() => say("opened", { subprotocol: socket.conn.protocol, transport: socket.conn.constructor.name }))
  socket.onClose((event) => say("closed", { code: event?.code, reason: event?.reason }))
  socket.connect()

  const cursor = {}
  const channel = socket.channel(topic, () => ({ ...cursor }))
  for (const [event, move] of Object.entries(moves(cursor)))
    channel.on(event, (payload) => {
      move(payload)
      say("event", { event, payload })
    })
  channel.onError((reason) => say("errored", { reason }))
  channel.onClose(() => say("channel_closed"))
  channel
    .join()
    .receive("ok", (reply) => say("joined", { reply }))
    .receive("error", (reply) => say("refused", { reply }))
    .receive("timeout", () => say("join_timeout"))
  return {
    leave: () => channel.leave().receive("ok", () => say("left")),
    quit: () => socket.disconnect(),
  }
}

await obey(await Promise.all(clients.map(start)))
