"""Asks the home's own API without a network: the same gate, routes and errors, over a pair of connected sockets."""

import asyncio
import socket
from types import TracebackType
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from bridge_client.api.server import Api
from bridge_client.requests import Answer

_PASSED_ON: Final = ("Content-Type", "Retry-After", "Allow")
"""The headers that say something to who asked from elsewhere."""


class InProcess:
    """A client of one running Api: an async context manager, called with what to ask."""

    def __init__(self, api: Api, token: str) -> None:
        self._api = api
        self._headers = {"Authorization": f"Bearer {token}"}

    async def __aenter__(self) -> "InProcess":
        self._session = aiohttp.ClientSession(connector=_Connector(self._api), headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def __call__(self, method: str, path: str, body: bytes | None) -> Answer:
        """The answer to a request whose path is one (`protocol.requests.check`); a body is JSON.

        Cancelled, it cancels the handler. Raises aiohttp.ClientError when the home is stopping.
        """
        url = URL("http://localhost" + path, encoded=True)
        headers = {} if method == "GET" else {"Content-Type": "application/json"}  # also of an empty one
        async with self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as response:
            found = {name.lower(): response.headers[name] for name in _PASSED_ON if name in response.headers}
            return Answer(response.status, found, await response.read())


class _Connector(aiohttp.BaseConnector):
    def __init__(self, api: Api) -> None:
        super().__init__()
        self._api = api

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            await loop.connect_accepted_socket(self._api.connection, theirs)
            _, protocol = await loop.create_unix_connection(self._factory, sock=ours)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return protocol
