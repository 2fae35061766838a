// npm `phoenix` at a test's command: sockets, channels, binary payloads and presence, with nothing of an app around them.
//
// Standard input: one line of JSON a command, {"do": name, ...}. Standard output: one line of JSON, its result.
// A binary payload is {"bytes": "00ff"} both ways. Sockets and channels have names that the commands choose.

import readline from "node:readline"
import { Presence, Socket } from "phoenix"
import WebSocket from "ws"

const sockets = {}
const channels = {}

const toWire = (payload) => (payload?.bytes === undefined ? payload : Uint8Array.from(Buffer.from(payload.bytes, "hex")).buffer)
const fromWire = (payload) => (payload instanceof ArrayBuffer ? { bytes: Buffer.from(payload).toString("hex") } : payload)

const answered = (push) =>
  new Promise((resolve) => {
    for (const status of ["ok", "error", "timeout"]) {
      push.receive(status, (response) => resolve({ status, response: fromWire(response) }))
    }
  })

const commands = {
  /** Opens a socket; resolves once it is open. */
  connect: ({ socket, url, token, params }) =>
    new Promise((resolve) => {
      const made = new Socket(url, { transport: WebSocket, authToken: token, params, heartbeatIntervalMs: 1e6 })
      sockets[socket] = { made, opened: 0, closed: [] }
      made.onOpen(() => resolve((sockets[socket].opened += 1)))
      made.onClose(({ code, reason }) => sockets[socket].closed.push({ code, reason }))
      made.connect()
    }),

  /** Joins; what the server says of presence goes through phoenix.js's own Presence. */
  join: ({ socket, channel, topic, params, bytes }) => {
    const made = sockets[socket].made.channel(topic, bytes === undefined ? params : () => toWire({ bytes }))
    const entry = (channels[channel] = { made, events: [], errors: 0, closed: 0, syncs: 0, seen: [] })
    entry.presence = new Presence(made)
    entry.presence.onJoin((key, current) => entry.seen.push([current ? "again" : "came", key]))
    entry.presence.onLeave((key, current) => entry.seen.push([current.metas.length ? "less" : "went", key]))
    entry.presence.onSync(() => (entry.syncs += 1))
    made.onMessage = (event, payload) => {
      if (!/^(chan_reply_|phx_)/.test(event)) entry.events.push([event, fromWire(payload)])
      return payload
    }
    made.onError(() => (entry.errors += 1))
    made.onClose(() => (entry.closed += 1))
    return answered(made.join())
  },

  push: ({ channel, event, payload }) => answered(channels[channel].made.push(event, toWire(payload))),
  leave: ({ channel }) => answered(channels[channel].made.leave()),

  /** What a channel has seen; presence as a list of [key, metas], since a key may be `__proto__`. */
  look: ({ channel }) => {
    const { made, events, errors, closed, syncs, seen, presence } = channels[channel]
    return { state: made.state, events, errors, closed, syncs, seen, present: presence.list((key, { metas }) => [key, metas]) }
  },

  /** The line breaks; phoenix.js connects and joins again by itself. */
  drop: ({ socket }) => sockets[socket].made.conn.terminate(),
  disconnect: ({ socket }) => new Promise((resolve) => sockets[socket].made.disconnect(() => resolve(null))),
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { do: name, ...order } = JSON.parse(line)
  const result = await commands[name](order)
  process.stdout.write(JSON.stringify(result ?? null) + "\n")
}
process.exit(0)
