"""The JSON of a profiler trace, as events whose values are still text: exact, small, forgiving.

Traces are JSON as programs in a hurry print it: bandwidths that are `inf`, names with raw line
breaks, lone surrogates or bytes of another encoding. What can be understood is; what is cut or
no trace is said to be so.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw

from schemas.errors import InputError
from stream.producers.capture import unreadable

ABSENT: Final = Raw(b"")

_NO_NUMBER: Final = re.compile(rb"(?<=[:,\[])(\s*)-?(?:inf|nan)(?=\s*[,}\]])")
_NUMBER: Final = rb"(-?)([0-9]{1,400})(?:\.([0-9]{1,400}))?(?:[eE]([+-]?[0-9]{1,9}))?"
"""Longer ones are no times either, and take long to read."""

_EXPONENTS: Final = 40
"""Numbers with larger exponents are no times: they are not spelled out."""


class Args(msgspec.Struct):
    """Of an event's arguments, those that mean something here."""

    device: Raw = ABSENT
    stream: Raw = ABSENT
    correlation: Raw = ABSENT
    bytes: Raw = ABSENT
    name: Raw = ABSENT
    labels: Raw = ABSENT
    graph_id: Raw = msgspec.field(default=ABSENT, name="graph id")
    node_id: Raw = msgspec.field(default=ABSENT, name="graph node id")


class Event(msgspec.Struct):
    """One trace event, every value still the JSON it was written as (ABSENT: not there)."""

    ph: Raw = ABSENT
    cat: Raw = ABSENT
    name: Raw = ABSENT
    pid: Raw = ABSENT
    tid: Raw = ABSENT
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: Raw = ABSENT


class Trace(msgspec.Struct):
    """A trace: its events, and what stands beside them."""

    events: list[Raw] | None = msgspec.field(default=None, name="traceEvents")
    base: Raw = msgspec.field(default=ABSENT, name="baseTimeNanoseconds")
    distributed: Raw = msgspec.field(default=ABSENT, name="distributedInfo")
    devices: Raw = msgspec.field(default=ABSENT, name="deviceProperties")
    schema: Raw = msgspec.field(default=ABSENT, name="schemaVersion")
    cuda_runtime_version: Raw = ABSENT
    cuda_driver_version: Raw = ABSENT
    record_shapes: Raw = ABSENT
    with_stack: Raw = ABSENT
    with_flops: Raw = ABSENT
    with_modules: Raw = ABSENT
    profile_memory: Raw = ABSENT


_trace_decoder = msgspec.json.Decoder(Trace)
_list_decoder = msgspec.json.Decoder(list[Raw])
_event_decoder = msgspec.json.Decoder(Event)
_args_decoder = msgspec.json.Decoder(Args)
_NO_ARGS: Final = Args()


def read_trace(path: Path) -> Trace:
    """Return the trace in a file of JSON, maybe gzip.

    Raises:
        InputError: the file cannot be read, is cut, is not JSON, or is not a trace.

    """
    data = _content(path)
    try:
        if data.lstrip()[:1] == b"[":
            return Trace(events=_events_in(path, _list_decoder.decode(data)))
        trace = _trace_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        trace = _read_forgivingly(path, data)
    if trace.events is None:
        raise InputError("is JSON, but no trace: it has no traceEvents", where=str(path))
    return trace


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read()
    except OSError as error:
        raise unreadable(path, error) from None
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except EOFError:
            raise InputError(
                "is cut: its gzip data ends too early", where=str(path), hint="copy it again"
            ) from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"is damaged: {error}", where=str(path), hint="copy it again") from None
    return data.removeprefix(b"\xef\xbb\xbf")


def _read_forgivingly(path: Path, data: bytes) -> Trace:
    """Read what Python's own parser understands, and write it again as the JSON it meant."""
    text = _NO_NUMBER.sub(rb"\1null", data).decode("utf-8", "surrogateescape")
    try:
        found = json.loads(text, strict=False, parse_float=str, parse_constant=lambda _: None)
    except (json.JSONDecodeError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and _at_end(error):
            what = f"is cut: its JSON ends too early, after {len(data):,} bytes"
        else:
            what = f"is not JSON: {error}"
        raise InputError(what, where=str(path), hint="copy it again") from None
    bare = isinstance(found, list)
    if bare:
        found = {"traceEvents": found}
    if not isinstance(found, dict):
        raise InputError("is JSON, but no trace", where=str(path))
    events = found.pop("traceEvents", None)
    known = {info.encode_name for info in msgspec.structs.fields(Trace)}
    trace = _trace_decoder.decode(_plain({k: v for k, v in found.items() if k in known}))
    if isinstance(events, list):
        trace.events = [Raw(_plain(event)) for event in events]
        if bare:
            _events_in(path, trace.events)
    return trace


def has_events(values: list[Raw]) -> bool:
    """Tell whether a list of JSON may be one of events: whether there is any object in it."""
    return any(bytes(value).startswith(b"{") for value in values)


def _events_in(path: Path, values: list[Raw]) -> list[Raw]:
    if not has_events(values):
        raise InputError("is JSON, but no trace: a list without events", where=str(path))
    return values


def _at_end(error: json.JSONDecodeError) -> bool:
    return error.msg.startswith("Unterminated string") or not error.doc[error.pos :].strip()


def _plain(value: Any) -> bytes:  # noqa: ANN401 -- whatever JSON holds
    return json.dumps(_escaped(value), ensure_ascii=False).encode()


def _escaped(value: Any) -> Any:  # noqa: ANN401 -- whatever JSON holds
    """Return a value without lone surrogates; one level of objects and lists deep is all we read."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    return value


def events_of(trace: Trace) -> Iterator[Event]:
    """Yield the events; what is no object is passed over."""
    for raw in trace.events or ():
        try:
            yield _event_decoder.decode(raw)
        except msgspec.DecodeError:
            continue


def args_of(event: Event) -> Args:
    """Return an event's arguments."""
    try:
        return _args_decoder.decode(event.args) if bytes(event.args) else _NO_ARGS
    except msgspec.DecodeError:
        return _NO_ARGS


def name_of(raw: Raw) -> bytes:
    """Return a JSON string's bytes, of whatever encoding they are; what is no string as it is written."""
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        try:
            value = json.loads(bytes(raw).decode("utf-8", "surrogateescape"), strict=False)
        except ValueError:
            return bytes(raw)
    if not isinstance(value, str):
        return bytes(raw)
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace")


def integer_of(raw: Raw) -> int | None:
    """Return a JSON integer, maybe in quotes, that fits 64 bits; None if it is none."""
    text = bytes(raw).strip(b'"')
    if not re.fullmatch(rb"-?[0-9]{1,20}", text):
        return None
    number = int(text)
    return number if -(2**63) < number < 2**63 else None


def nanoseconds_of(raw: Raw) -> int | None:
    """Return a JSON number of microseconds in ns: exactly, by its decimal digits, rounded down.

    Doubles hold no microseconds since 1970 with three digits after the point.
    """
    found = re.fullmatch(_NUMBER, bytes(raw).strip(b'"'))
    if not found:
        return None
    sign, whole, fraction, exponent = found.groups(b"")
    shift = int(exponent or 0) + 3 - len(fraction)
    if abs(shift) > _EXPONENTS + len(fraction):
        return None
    digits = int(whole + fraction)
    digits = -digits if sign else digits
    scale = int(10 ** abs(shift))
    return digits * scale if shift >= 0 else digits // scale
