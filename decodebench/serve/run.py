"""From settings to a server that runs until it is told to stop."""

import asyncio
import math
import signal
import socket
import sys

import uvicorn

from decodebench.errors import UserError
from decodebench.serve.app import build_app
from decodebench.serve.service import Service

LAST_WORDS_SECONDS = 10  # for clients to be told that their time is up


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet.

    Raises:
        UserError: it cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--host {host} --port {port}: {reason}") from None
    return bound


class Server(uvicorn.Server):
    """A server for one service.

    Args:
        api_key: that clients must bring, if any.
        drain_seconds: that running requests have after SIGTERM; what is left then ends with an error.
        connections: most of them at a time; further ones get a 503.
    """

    def __init__(self, service: Service, api_key: str | None, drain_seconds: float, connections: int) -> None:
        config = uvicorn.Config(
            build_app(service, api_key), http="h11", ws="none", loop="asyncio", lifespan="on", log_config=None,
            access_log=False, server_header=False, limit_concurrency=connections, timeout_keep_alive=30,
            timeout_graceful_shutdown=math.ceil(drain_seconds) + LAST_WORDS_SECONDS,
        )  # fmt: skip
        super().__init__(config)
        self.service, self.drain_seconds = service, drain_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for bound in sockets or []:
            host, port = bound.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            names = ", ".join(self.service.methods)
            print(
                f"serving {self.service.model.name} with {names} on http://{shown}:{port}", file=sys.stderr, flush=True
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        late = loop.call_later(self.drain_seconds, lambda: loop.run_in_executor(None, self.service.stop))
        await super().shutdown(sockets)
        late.cancel()


def run_server(server: Server, bound: socket.socket) -> None:
    """Serve until SIGTERM, which is an ordinary end, or Ctrl-C."""
    # uvicorn raises a signal once more when it is done
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[bound])
    finally:
        signal.signal(signal.SIGTERM, before)
