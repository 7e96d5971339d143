"""Tokens for OAUTHBEARER: from a file, from an endpoint by client credentials, or unsecured."""

from __future__ import annotations

import base64
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Final, NamedTuple

import msgspec

from schemas.errors import TransportError
from stream.kafka.properties import OAuth

_TIMEOUT_SECONDS: Final = 10.0
_MAX_BYTES: Final = 1 << 20
_RENEW_AT: Final = 0.8
"""Of a token's life: so it does not run out on its way."""

_UNSECURED_SECONDS: Final = 3600


class _Answer(msgspec.Struct):
    access_token: str
    expires_in: float = 300.0


class _Held(NamedTuple):
    token: str
    until: float


_held: dict[OAuth, _Held] = {}
_lock = threading.Lock()


def token(oauth: OAuth) -> str:
    """Return a token to be used now. Clients share it until it has lived for most of its life.

    Raises:
        TransportError: there is none to be had. The text holds no secret.

    """
    if oauth.token_file is not None:
        try:
            # Read anew every time: whoever writes it renews it.
            return oauth.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise TransportError(
                f"token cannot be read: {type(error).__name__}", where=str(oauth.token_file)
            ) from None
    if oauth.unsecured_subject:
        return unsecured(oauth.unsecured_subject, time.time())
    with _lock:
        held = _held.get(oauth)
        if held is None or time.monotonic() >= held.until:
            answer = _ask(oauth)
            held = _Held(answer.access_token, time.monotonic() + answer.expires_in * _RENEW_AT)
            _held[oauth] = held
        return held.token


def unsecured(subject: str, now: float) -> str:
    """Return a token nobody has signed, as brokers without a validator of their own take it."""
    claims = {"sub": subject, "iat": now, "exp": now + _UNSECURED_SECONDS}
    parts = [msgspec.json.encode(part) for part in ({"alg": "none"}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(p).rstrip(b"=").decode() for p in parts), ""])


def _ask(oauth: OAuth) -> _Answer:
    form = {"grant_type": "client_credentials"} | ({"scope": oauth.scope} if oauth.scope else {})
    credentials = base64.b64encode(f"{oauth.client_id}:{oauth.client_secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310  (https, or this machine: see stream.kafka.properties)
        oauth.endpoint,
        urllib.parse.urlencode(form).encode(),
        {"Authorization": f"Basic {credentials}", "Accept": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
            return msgspec.json.decode(answer.read(_MAX_BYTES), type=_Answer)
    except urllib.error.HTTPError as error:
        what = f"no token: the endpoint answers {error.code}"
    except (OSError, msgspec.DecodeError) as error:
        what = f"no token: {type(error).__name__}"
    raise TransportError(what, where=oauth.endpoint, hint="check sasl.jaas.config") from None
