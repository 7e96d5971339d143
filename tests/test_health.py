"""The endpoint for those who supervise a service."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from schemas.errors import OutputError
from stream.health import Health


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Return status and text of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_ready_is_what_the_service_says_and_alive_is_always() -> None:
    """/readyz gives 503 and the reason until nothing is missing; /healthz does not ask."""
    missing = "restoring 0, 2"
    with Health(("127.0.0.1", 0), lambda: missing) as health:
        assert ask(health.port, "/readyz") == (503, "restoring 0, 2\n")
        assert ask(health.port, "/healthz") == (200, "alive\n")
        missing = ""
        assert ask(health.port, "/readyz") == (200, "ready\n")
        assert ask(health.port, "/readyz", "HEAD") == (200, "")
        assert ask(health.port, "/../etc/passwd")[0] == 404


def test_a_silent_client_holds_nobody_up() -> None:
    """Whoever connects and says nothing does not keep the others from being answered."""
    with Health(("127.0.0.1", 0), lambda: "") as health, socket.create_connection(("127.0.0.1", health.port)):
        assert ask(health.port, "/healthz") == (200, "alive\n")


def test_a_port_that_is_taken_is_one_line() -> None:
    """The error names the address and the option."""
    with Health(("127.0.0.1", 0), lambda: "") as health, pytest.raises(OutputError) as caught:
        Health(("127.0.0.1", health.port), lambda: "")
    assert f"127.0.0.1:{health.port}: cannot listen: Address already in use" in caught.value.line()
    assert "--listen" in caught.value.line()
