// Drives npm `@supabase/realtime-js` as an app would: it subscribes to `realtime:<room>`, resumes with its cursor in the
// join's payload, and says what it sees. Its events come inside `broadcast` messages, as it knows no others.
//
// A client's order: {name, url, token, topic}, topic without `realtime:`. See program.mjs for the rest.

import { RealtimeClient } from "@supabase/realtime-js"
import WebSocket from "ws"
import { clients, moves, obey, sayer } from "./program.mjs"

function start({ name, url, token, topic }) {
  const say = sayer(name)
  const client = new RealtimeClient(url, { transport: WebSocket, params: { apikey: token } })
  client.connect()
  client.socketAdapter.onOpen(() => say("opened"))
  client.socketAdapter.onClose((event) => say("closed", { code: event.code, reason: event.reason }))

  const cursor = {}
  const known = moves(cursor)
  const channel = client.channel(topic)
  channel.on("broadcast", { event: "*" }, ({ event, payload }) => {
    known[event]?.(payload)
    channel.updateJoinPayload({ ...cursor })
    say("event", { event, payload })
  })
  channel.subscribe((status, error) => {
    const saw = { SUBSCRIBED: "joined", CHANNEL_ERROR: "errored", CLOSED: "channel_closed", TIMED_OUT: "join_timeout" }
    say(saw[status], error ? { reason: error.message } : {})
  })
  return {
    leave: async () => {
      if ((await channel.unsubscribe()) === "ok") say("left")
    },
    quit: () => client.disconnect(),
  }
}

await obey(clients.map(start))
