"""Answers whether a service lives and whether it is ready, over HTTP: for those who supervise it.

    with Health(("127.0.0.1", 8080), ready=lambda: "" if service.ready else "restoring") as health:
        ...                                    # GET /healthz: 200. GET /readyz: 200, or 503 and why

Alive means that the process runs: brokers that are away are no reason to restart it, so /healthz
never asks them. Ready means that all its tasks are restored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Final, Self

from schemas.errors import OutputError

_TIMEOUT_SECONDS: Final = 5.0
"""A client that is silent for so long is dropped."""


class Health:
    """The endpoint. Use as a context manager."""

    def __init__(self, address: tuple[str, int], ready: Callable[[], str]) -> None:
        """Listen there. `ready` returns what is missing; nothing: all is ready.

        Raises:
            OutputError: nobody can listen there.

        """
        try:
            self._server = _Server(address, _handler(ready))
        except (OSError, OverflowError) as error:
            where = f"{address[0]}:{address[1]}"
            why = getattr(error, "strerror", None) or str(error)
            raise OutputError(f"cannot listen: {why}", where=where, hint="give another --listen") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing: a client that hangs up is no matter of ours."""


def _handler(ready: Callable[[], str]) -> Callable[[object, object, BaseServer], BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_SECONDS
        server_version = "gpu-ledger"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._answer(200, "alive")
            elif self.path == "/readyz":
                missing = ready()
                self._answer(503 if missing else 200, missing or "ready")
            else:
                self._answer(404, "not here: /healthz and /readyz are")

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Write no log: probes come every few seconds."""

        def _answer(self, code: int, text: str) -> None:
            body = f"{text}\n".encode("utf-8", "backslashreplace")
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler  # type: ignore[return-value]
