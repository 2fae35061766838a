"""How log records are written: one line each, as text or JSON, and never with a credential in them."""

import logging
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from protocol.pairing import scrub

# Control characters, and those that end a line or turn the direction of writing.
_UNSAFE = (*range(0x20), *range(0x7F, 0xA0), *range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_CONTROL = {code: f"\\u{{{code:x}}}" for code in _UNSAFE}


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO bridge_client.link: what happened`, then the traceback, if any."""

    def format(self, record: logging.LogRecord) -> str:
        # What a peer sent may be in the message: it can't start a line of its own, nor drive the terminal.
        message = record.getMessage().translate(_CONTROL)
        line = f"{_time(record)} {record.levelname} {record.name}: {message}"
        return scrub("\n".join(filter(None, (line, *_trace(self, record)))))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname, "logger": record.name}
        line["message"] = scrub(record.getMessage().encode("utf-8", "replace").decode())
        if trace := "\n".join(_trace(self, record)):
            line["exception"] = scrub(trace.encode("utf-8", "replace").decode())
        return msgspec.json.encode(line).decode()


def set_up(level: str, stream: TextIO, *, as_json: bool = False) -> None:
    """Send every record of at least `level` to `stream`, in place of whatever was set up before.

    The WebSocket and HTTP libraries write request heads at DEBUG; of them only INFO and above is written at any level.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in ("websockets", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLevelName(level)))


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    parts = [record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else None)]
    parts.append(formatter.formatStack(record.stack_info) if record.stack_info else None)
    return [part for part in parts if part]
