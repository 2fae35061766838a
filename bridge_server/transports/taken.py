"""How much of what was written a peer has not taken: by us, and by the system on its behalf.

Our own count moves in steps of what the system takes at a time, a good part of its buffer (SO_SNDBUF): to a phone that
reads a kilobyte now and then that is one step in half a minute, which looks like none.
"""

import asyncio
import fcntl
import struct
import sys
import termios
from typing import Final

_SO_NWRITE: Final = 0x1024  # macOS, sys/socket.h


def untaken(transport: asyncio.WriteTransport) -> int:
    """Bytes that the other end has not acknowledged; those that the system holds only where it tells (Linux, macOS)."""
    return transport.get_write_buffer_size() + in_system(transport.get_extra_info("socket"))


def in_system(socket: object) -> int:
    """Bytes in a socket's send queue, sent or not, that were not acknowledged; 0 when that can't be known."""
    try:
        if sys.platform == "darwin":
            return int(socket.getsockopt(0xFFFF, _SO_NWRITE))  # type: ignore[attr-defined]
        found: int = struct.unpack("i", fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]  # type: ignore[attr-defined]
        return found
    except (OSError, AttributeError, ValueError):
        return 0
