"""The HTTP face: routes, keys, and errors that clients can read."""

import hmac
import ipaddress
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decodebench.serve.calls import Calls
from decodebench.serve.errors import ApiError
from decodebench.serve.metrics import Metrics
from decodebench.serve.schema import ChatRequest, CompletionRequest
from decodebench.serve.service import Service

log = logging.getLogger(__name__)


def build_app(service: Service, api_key: str | None = None) -> Starlette:
    """The application.

    Args:
        service: stopped with the application.
        api_key: that clients must bring, except to ``/healthz``. Without one, requests must be addressed to this very
            machine by name, so that no page in a browser can reach it under a name of its own.
    """
    calls = Calls(service)

    async def models(http: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [_model(service)]})

    async def model(http: HttpRequest) -> Response:
        name = http.path_params["name"]
        if name != service.model.name:
            raise ApiError(404, f"model '{name[:80]}' is not served here", "model", "model_not_found")
        return JSONResponse(_model(service))

    async def metrics(http: HttpRequest) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(http: HttpRequest) -> Response:
        return JSONResponse({"status": service.error or "ok"}, 503 if service.error else 200)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        service.stop()
        calls.reader.shutdown()

    return Starlette(
        routes=[
            Route("/v1/chat/completions", calls.endpoint(ChatRequest), methods=["POST"]),
            Route("/v1/completions", calls.endpoint(CompletionRequest), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/metrics", metrics),
            Route("/healthz", health),
        ],
        middleware=[Middleware(_Guard, metrics=service.metrics, api_key=api_key)],
        exception_handlers={
            ApiError: _api_error, HTTPException: _http_error, ClientDisconnect: _gone, Exception: _our_mistake
        },
        lifespan=lifespan,
    )  # fmt: skip


def _model(service: Service) -> dict[str, object]:
    return {
        "id": service.model.name,
        "object": "model",
        "created": 0,
        "owned_by": "decodebench",
        "methods": list(service.methods),
        "max_length": service.length,
        "max_rows": service.limits.rows,
        "policy": service.policy_name,
    }


def is_local(host: str) -> bool:
    """Whether only this machine can reach what is bound to this name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Guard:
    """Lets in who may come in, and counts what they are answered."""

    def __init__(self, app: ASGIApp, metrics: Metrics, api_key: str | None) -> None:
        self.app, self.metrics = app, metrics
        self.expected = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        def count(status: int) -> None:
            path = scope["path"] if "endpoint" in scope and not scope.get("path_params") else "other"
            self.metrics.responses.labels(path, str(status)).inc()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        refusal = self._refusal(scope)
        try:
            await (refusal.response() if refusal else self.app)(scope, receive, counted)
        except Exception:
            count(500)
            raise

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        if scope["path"] == "/healthz":
            return None
        if self.expected is not None:
            given = headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, self.expected):
                return ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        elif not is_local(HttpRequest(scope).url.hostname or ""):
            return ApiError(403, "without an API key, this server answers to localhost alone")
        return None


async def _api_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return ApiError(error.status_code, f"{http.method} {http.url.path[:80]}: {error.detail}").response()


async def _gone(http: HttpRequest, error: Exception) -> Response:
    return Response(status_code=499)


async def _our_mistake(http: HttpRequest, error: Exception) -> Response:
    log.error("a request failed", exc_info=error)
    return ApiError(500, "the server has failed; its log says more").response()
