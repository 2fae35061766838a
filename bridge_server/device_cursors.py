"""How far each device has read, for apps that keep no cursor of their own.

Only what an app says counts. It is written behind its back, all devices in one transaction a second, on a thread of its
own: a hub that is killed knows each place as it was at most about a second before. Bounded by the number of devices:
one row each, and what was said since the last write.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from bridge_server.database import BadDatabase, Database
from protocol.event_id import Cursor

WRITE_SECONDS: Final = 1.0
"""Seconds between two writes, while there is anything to write."""

log = logging.getLogger("bridge_server.device_cursors")


class DeviceCursors:
    """The cursors kept for devices. Reads belong to the thread that opened `database`; nothing here waits for a disk.

    Without a database they live as long as this object.
    """

    def __init__(self, database: Database | None = None) -> None:
        self._database = database
        self._said: dict[str, Cursor] = {}  # since the last write began
        self._writing: Mapping[str, Cursor] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device-cursors")
        self._writer: Database | None = None
        self._failing = False
        self._closed = False

    def get(self, device_id: str) -> Cursor | None:
        """The place a device last said, None if it never did. Raises sqlite3.Error."""
        said = self._said.get(device_id) or self._writing.get(device_id)
        if said is not None or self._database is None:
            return said
        row = self._database.connection.execute(
            "SELECT epoch, event_id FROM device_cursors WHERE device_id = ?", (device_id,)
        ).fetchone()
        return None if row is None else Cursor(row[0], row[1])

    def put(self, device_id: str, cursor: Cursor) -> None:
        """A device says how far it has read. Within one epoch a lower place changes nothing."""
        known = None
        with suppress(sqlite3.Error):  # the write compares again
            known = self.get(device_id)
        if known is None or known.epoch != cursor.epoch or known.event_id < cursor.event_id:
            self._said[device_id] = cursor

    async def run(self) -> None:
        """Write what is said, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            await self._write_said()

    async def close(self) -> None:
        """Write the rest and let go of the file. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        await self._write_said()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown(wait=False)

    async def _write_said(self) -> None:
        if not self._said or self._database is None:
            return
        self._writing, self._said = self._said, {}
        try:
            work = asyncio.get_running_loop().run_in_executor(self._thread, self._write, dict(self._writing))
            await asyncio.shield(work)
            self._failing = False
        except (BadDatabase, sqlite3.Error, OSError) as error:
            for device_id, cursor in self._writing.items():
                newer = self._said.get(device_id)
                self._said[device_id] = cursor
                if newer is not None:
                    self.put(device_id, newer)
            if not self._failing:
                log.error("the cursors of devices can't be written, and are tried again: %s", error)
            self._failing = True
        self._writing = {}

    # On the thread.

    def _write(self, said: Mapping[str, Cursor]) -> None:
        assert self._database is not None
        self._database.check_same()  # else a new file would be made in the place of one that was moved away
        if self._writer is None:
            self._writer = Database(self._database.path)
        with self._writer.writing() as connection:
            connection.executemany(
                "INSERT INTO device_cursors (device_id, epoch, event_id) VALUES (?, ?, ?)"
                " ON CONFLICT (device_id) DO UPDATE SET epoch = excluded.epoch, event_id = excluded.event_id"
                " WHERE excluded.epoch != epoch OR excluded.event_id > event_id",
                [(device_id, cursor.epoch, cursor.event_id) for device_id, cursor in said.items()],
            )

    def _end(self) -> None:
        if self._writer is not None:
            with suppress(sqlite3.Error):
                self._writer.close()
