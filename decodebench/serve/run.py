"""From settings to a server that runs until it is told to stop."""

import signal
import socket
import sys

import uvicorn

from decodebench.errors import UserError
from decodebench.serve.app import build_app
from decodebench.serve.service import Service


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


def make_server(service: Service, api_key: str | None, drain_seconds: int, connections: int) -> uvicorn.Server:
    """A server for one service.

    Args:
        api_key: that clients must bring, if any.
        drain_seconds: that running requests have after SIGTERM; what is left then is cut off.
        connections: most of them at a time; further ones get a 503.
    """
    config = uvicorn.Config(
        build_app(service, api_key), http="h11", ws="none", loop="asyncio", lifespan="on", log_config=None,
        access_log=False, server_header=False, limit_concurrency=connections, timeout_keep_alive=30,
        timeout_graceful_shutdown=drain_seconds,
    )  # fmt: skip
    return uvicorn.Server(config)


def run_server(server: uvicorn.Server, bound: socket.socket, told: str) -> None:
    """Serve until SIGTERM, which is an ordinary end, or Ctrl-C."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"serving {told} on http://{shown}:{port}", file=sys.stderr, flush=True)
    # uvicorn raises a signal once more when it is done
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[bound])
    finally:
        signal.signal(signal.SIGTERM, before)
