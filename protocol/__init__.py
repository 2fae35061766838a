"""What the bytes mean: the Phoenix channels wire protocol and the bridge's own messages, without I/O.

Nothing here opens a socket, reads a clock, logs or imports asyncio; the hub, the home and the app client all stand on
it.
"""
