// Drives npm `y-phoenix-channel` as an editor would: each client holds one shared document, which it keeps in step with
// the others over binary messages, and says what the document reads after each change.
//
// A client's order: {name, url, token, topic}. Commands beside leave and quit: "write a" and "write b" put that letter,
// behind the client's name, at the end of each document.

import { Socket } from "phoenix"
import WebSocket from "ws"
import { PhoenixChannelProvider } from "y-phoenix-channel"
import * as Y from "yjs"
import { clients, obey, sayer } from "./program.mjs"

function start({ name, url, token, topic }) {
  const say = sayer(name)
  const socket = new Socket(url, { transport: WebSocket, params: { token } })
  socket.onOpen(() => say("opened"))
  socket.onClose((event) => say("closed", { code: event.code, reason: event.reason }))
  socket.onMessage(({ event, payload }) => {
    if (payload instanceof ArrayBuffer) say("binary", { event, bytes: payload.byteLength })
  })
  socket.connect()

  const document = new Y.Doc()
  const text = document.getText("note")
  text.observe(() => say("text", { text: text.toString() }))
  const provider = new PhoenixChannelProvider(socket, topic, document, { disableBc: true })
  provider.on("status", ({ status }) => say(status === "connected" ? "joined" : status))
  provider.on("synced", (synced) => say(synced ? "synced" : "out_of_step"))
  const { channel } = provider
  return {
    "write a": () => text.insert(text.length, `${name}:a `),
    "write b": () => text.insert(text.length, `${name}:b `),
    leave: () => {
      channel.onClose(() => say("left"))
      provider.disconnect()
    },
    quit: () => socket.disconnect(),
  }
}

await obey(clients.map(start))
