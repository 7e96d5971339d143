"""The sink's state as entries: what stays the same keeps its bytes.

    sink                        version, configuration digest, sessions
    <session>                   what is known of a session, but for
    <session>.process.<n>           one process
    <session>.spans                 boundaries
    <session>.numbers               what the numbers of tables `unknown` and `rows` stand for
    <session>.strings.<block>       names, by blocks of their numbers
    <session>.contexts.<block>      contexts
    <session>.groups.<block>        groups
    <session>.<table>.<block>       sums: `stat` and `bucket` by slot and group, others by slot

A session's part of the key is a digest of its label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from consumers.admission import FIELDS, Groups
from consumers.fold import Session
from consumers.sinkstate import ProcessState, SessionState
from consumers.spans import SpansState
from consumers.statistics import BUCKET_BITS, LOCAL_BITS
from schemas.columns import Int64s, RecordType, Unpacked, pack, unpack
from schemas.config import Config
from schemas.errors import DecodeError

_BLOCK_BITS: Final = 12
"""Strings, contexts and groups of an entry, as a power of two."""
_GROUP_BITS: Final = BUCKET_BITS + 9
"""Of a key: groups whose sums stand in one entry, and their buckets."""
_TABLES: Final = {
    "total": (LOCAL_BITS, ("kernels", "ns")),
    "unknown": (LOCAL_BITS, ("kernels", "ns")),
    "rows": (LOCAL_BITS, ("count",)),
    "stat": (_GROUP_BITS, ("count", "total", "min", "max")),
    "bucket": (_GROUP_BITS, ("count",)),
}
"""Bits of a key within one entry, and the columns."""


class _Numbers(msgspec.Struct, array_like=True):
    unknown: list[tuple[int, int]]
    rows: list[tuple[int, int, str]]


class _Spans(msgspec.Struct, array_like=True):
    measured: SpansState
    steady: SpansState


_state_decoder = msgspec.msgpack.Decoder(SessionState)
_process_decoder = msgspec.msgpack.Decoder(ProcessState)
_numbers_decoder = msgspec.msgpack.Decoder(_Numbers)
_spans_decoder = msgspec.msgpack.Decoder(_Spans)


def session_key(label: str) -> str:
    """Return a session's part of the keys of its entries."""
    return hashlib.blake2b(label.encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()


def write_session(session: Session) -> Iterator[tuple[str, bytes]]:
    """Yield the entries of a session."""
    state = session.state
    key = session_key(state.session)
    small = msgspec.structs.replace(
        state, processes=[], unknown=[], rows=[], measured=SpansState(), steady=SpansState()
    )
    yield key, _small(small)
    for number, process in enumerate(state.processes):
        yield f"{key}.process.{number}", _small(process)
    yield f"{key}.spans", _small(_Spans(state.measured, state.steady))
    yield f"{key}.numbers", _small(_Numbers(state.unknown, state.rows))
    yield from _write_groups(key, session.groups)
    for name, table in session.tables().items():
        bits, names = _TABLES[name]
        keys, columns = table.rows()
        if not len(keys):
            continue
        blocks = keys >> bits
        begins = np.flatnonzero(np.diff(blocks, prepend=-1)).tolist()
        for low, high in zip(begins, [*begins[1:], len(keys)], strict=True):
            rows = {"key": keys[low:high]} | {c: v[low:high] for c, v in zip(names, columns, strict=True)}
            yield f"{key}.{name}.{blocks[low]}", pack(RecordType.STATE, None, rows, keep="key")


def read_session(config: Config, label: str, entries: Mapping[str, bytes]) -> Session:
    """Return a session whose entries `write_session` made; DecodeError if they are not whole."""
    key = session_key(label)
    session = Session(config, label)
    try:
        state = session.state = _state_decoder.decode(_entry(entries, key).header)
        processes = _numbered(entries, f"{key}.process.")
        state.processes = [_process_decoder.decode(entry.header) for entry in processes]
        numbers = _numbers_decoder.decode(_entry(entries, f"{key}.numbers").header)
        state.unknown, state.rows = numbers.unknown, numbers.rows
        spans = _spans_decoder.decode(_entry(entries, f"{key}.spans").header)
        state.measured, state.steady = spans.measured, spans.steady
        session.groups = _read_groups(key, entries, Groups(state.processes, config.limits.groups))
        for name, table in session.tables().items():
            parts = _numbered(entries, f"{key}.{name}.")
            if parts:
                table.load(*_joined(parts, ("key", *_TABLES[name][1])))
    except (msgspec.DecodeError, ValueError, KeyError, IndexError) as error:
        raise DecodeError(f"state of the sink: {error}") from None
    session.restored()
    return session


def _write_groups(key: str, groups: Groups) -> Iterator[tuple[str, bytes]]:
    for block, texts in _blocks(groups.strings):
        yield f"{key}.strings.{block}", pack(RecordType.STATE, None, {}, texts)
    for block, pairs in _blocks(groups.contexts):
        parents, names = np.array(pairs, np.int64).T
        rows = {"parent": parents, "name": names}
        yield f"{key}.contexts.{block}", pack(RecordType.STATE, None, rows, keep="name")
    fields = groups.fields()
    for block, of_process in _blocks(groups.of_process):
        low = block << _BLOCK_BITS
        part = fields[low : low + len(of_process)]
        rows = {name: np.ascontiguousarray(part[:, i]) for i, name in enumerate(FIELDS)}
        rows["process"] = np.array(of_process, np.int64)
        yield f"{key}.groups.{block}", pack(RecordType.STATE, None, rows, keep="process")


def _read_groups(key: str, entries: Mapping[str, bytes], groups: Groups) -> Groups:
    strings = [text for entry in _numbered(entries, f"{key}.strings.") for text in entry.strings]
    parents, (names,) = _joined(_numbered(entries, f"{key}.contexts."), ("parent", "name"))
    contexts = zip(parents.tolist(), names.tolist(), strict=True)
    parts = _numbered(entries, f"{key}.groups.")
    if parts:
        process, fields = _joined(parts, ("process", *FIELDS))
        groups.restore(strings, contexts, np.stack(fields, axis=1), process.tolist())
    else:
        groups.restore(strings, contexts, np.zeros((0, len(FIELDS)), np.int64), [])
    return groups


def _small(value: object) -> bytes:
    return pack(RecordType.STATE, value, {})


def _blocks(values: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    size = 1 << _BLOCK_BITS
    for block in range(-(-len(values) // size)):
        yield block, values[block * size : (block + 1) * size]


def _entry(entries: Mapping[str, bytes], key: str) -> Unpacked:
    if key not in entries:
        raise DecodeError(f"state of the sink lacks its entry {key}")
    unpacked = unpack(entries[key])
    if unpacked.record_type != RecordType.STATE:
        raise DecodeError(f"entry {key} is of type {unpacked.record_type}, not a state")
    return unpacked


def _numbered(entries: Mapping[str, bytes], prefix: str) -> list[Unpacked]:
    """Return the entries with a prefix, in order of the number behind it."""
    numbers = sorted(int(name.removeprefix(prefix)) for name in entries if name.startswith(prefix))
    return [_entry(entries, f"{prefix}{number}") for number in numbers]


def _joined(parts: Sequence[Unpacked], names: Sequence[str]) -> tuple[Int64s, list[Int64s]]:
    """Return the first and the other columns of entries, put together in order."""
    first, *others = (np.concatenate([part.columns[name] for part in parts]) for name in names)
    return first, others
