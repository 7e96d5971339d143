"""A linker's state as entries: small, by lane, and those of what stays the same stay the same.

A transport that keeps the latest entry of every key need write only the entries that changed:

    retired                     labels of ended sessions of which nothing else is known any more
    linker                      version, configuration digest, sessions and their timelines
    <lane>                      watermark, row ordinals and such of one lane
    <lane>.facts                what is known of its process
    <lane>.<table>.<block>      rows of a table, by blocks of row numbers

A lane's part of the key is a digest of its session, process and capture. Every entry of rows has
its own texts and contexts, so each can be read alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec
import numpy as np

from consumers.contexts import Contexts, Element, Names
from consumers.counters import COUNTED
from consumers.lane import CLOSINGS, LAUNCHES, RANGES, ROWS, UNRESOLVED, WORK, Lane, LaneState
from consumers.seen import Seen
from consumers.tables import Table, concat, empty, rows_of, runs_of, take
from consumers.timeline import TimelineState
from schemas.columns import Int64s, RecordType, pack, unpack
from schemas.deltas import Fact
from schemas.errors import DecodeError, DigestMismatchError
from schemas.types import Process

VERSION: Final = 1
LINKER: Final = "linker"
RETIRED: Final = "retired"
RETIRED_LABELS: Final = 10_000
"""So many labels are remembered: a record that comes back after that is a new session's."""

_BLOCK_ROWS: Final = 4096
_BLOCK_ADVANCES: Final = 1
"""Rows that wait for their window came in thousands with one advance, and leave with it."""

_TABLES: Final = {
    "work": (WORK, "ordinal"),
    "launches": (LAUNCHES, "ordinal"),
    "ranges": (RANGES, "ordinal"),
    "closings": (CLOSINGS, "opening"),
    "rows": (ROWS, "advance"),
    "counted": (COUNTED, "counter"),
}
"""The columns of every table, and the column whose value decides a row's block."""

_TEXTS: Final = {("work", "name"), ("ranges", "name"), ("rows", "name"), ("counted", "fields")}
_NODES: Final = {("launches", "context"), ("rows", "context")}


class Refused(msgspec.Struct):
    """Rows of one (process, capture) that came, or that came after the end of the session."""

    process: Process
    capture: str
    kinds: dict[int, Seen]


class SessionState(msgspec.Struct):
    """What a linker remembers of a session; `lanes` are their parts of the keys."""

    name: str
    timeline: TimelineState
    lanes: list[str]
    ended: int
    told_end: bool
    refused: list[Refused] = []


class LinkerState(msgspec.Struct):
    """The entry `LINKER`."""

    version: int
    digest: str
    partition: int
    sessions: list[SessionState]
    advances: int
    homeless: int


class _Rows(msgspec.Struct):
    """Header of an entry of rows: `nodes` are contexts as (parent, element), parents first."""

    nodes: list[tuple[int, Element]]


_linker_decoder = msgspec.msgpack.Decoder(LinkerState)
_lane_decoder = msgspec.msgpack.Decoder(LaneState)
_labels_decoder = msgspec.msgpack.Decoder(list[str])
_facts_decoder = msgspec.msgpack.Decoder(list[Fact])
_rows_decoder = msgspec.msgpack.Decoder(_Rows)


def lane_key(session: str, state: LaneState) -> str:
    """Return a lane's part of the keys of its entries."""
    identity = (session, state.process, state.capture)
    return hashlib.blake2b(msgspec.msgpack.encode(identity), digest_size=12).hexdigest()


def write_linker(state: LinkerState) -> bytes:
    """Return the value of the entry `LINKER`."""
    return pack(RecordType.STATE, state, {})


def read_linker(data: bytes, digest: str | None) -> LinkerState:
    """Return what `write_linker` was given; with `digest` None, under whatever configuration.

    Raises:
        DecodeError: it is not a linker's state, or of a newer version.
        DigestMismatchError: it was made under another configuration than `digest`.

    """
    unpacked = unpack(data)
    try:
        state = _linker_decoder.decode(unpacked.header)
    except (msgspec.DecodeError, ValueError) as error:
        raise DecodeError(f"linker state: {error}") from None
    if state.version > VERSION:
        raise DecodeError(f"linker state has version {state.version}, this program reads {VERSION}")
    if digest is not None and state.digest != digest:
        raise DigestMismatchError(
            f"the session runs under configuration {state.digest}, not {digest}",
            hint="go on with that one, or replay the events under the new one",
        )
    return state


def write_retired(labels: Iterable[str]) -> bytes:
    """Return the value of the entry `RETIRED`."""
    return pack(RecordType.STATE, list(labels), {})


def read_retired(entries: Mapping[str, bytes]) -> dict[str, None]:
    """Return the labels that `write_retired` was given, in order; DecodeError if they cannot be read."""
    if RETIRED not in entries:
        return {}
    try:
        return dict.fromkeys(_labels_decoder.decode(unpack(entries[RETIRED]).header))
    except (msgspec.DecodeError, ValueError) as error:
        raise DecodeError(f"linker state: {error}") from None


def write_lane(key: str, lane: Lane, names: Names, contexts: Contexts) -> Iterator[tuple[str, bytes]]:
    """Yield the entries of a lane."""
    facts = lane.state.facts
    yield key, pack(RecordType.STATE, msgspec.structs.replace(lane.state, facts=[]), {})
    if facts:
        yield f"{key}.facts", pack(RecordType.STATE, facts, {})
    for name, table in lane.tables().items():
        if not rows_of(table):
            continue
        by = _TABLES[name][1]
        blocks = table[by] // (_BLOCK_ADVANCES if by == "advance" else _BLOCK_ROWS)
        order = np.argsort(blocks, kind="stable")
        begins = runs_of(blocks[order])
        for low, high in zip(begins, [*begins[1:], len(order)], strict=True):
            rows = take(table, order[low:high])
            yield f"{key}.{name}.{blocks[order[low]]}", _write_rows(name, rows, names, contexts)


def read_lane_state(key: str, entries: Mapping[str, bytes]) -> LaneState:
    """Return the state of a lane; DecodeError if it is not there or cannot be read."""
    if key not in entries:
        raise DecodeError(f"linker state lacks its entry {key}")
    try:
        state = _lane_decoder.decode(unpack(entries[key]).header)
        if facts := entries.get(f"{key}.facts"):
            state.facts = _facts_decoder.decode(unpack(facts).header)
    except (msgspec.DecodeError, ValueError) as error:
        raise DecodeError(f"linker state {key}: {error}") from None
    return state


def read_tables(key: str, entries: Mapping[str, bytes], names: Names, contexts: Contexts) -> dict[str, Table]:
    """Return the tables of a lane; DecodeError if one cannot be read."""
    tables = {}
    for name, (columns, _) in _TABLES.items():
        prefix = f"{key}.{name}."
        blocks = sorted((k for k in entries if k.startswith(prefix)), key=lambda k: int(k[len(prefix) :]))
        parts = [_read_rows(name, entries[block], names, contexts) for block in blocks]
        tables[name] = concat([empty(columns), *parts])
    return tables


def _write_rows(name: str, rows: Table, names: Names, contexts: Contexts) -> bytes:
    strings = Names()
    nodes: list[tuple[int, Element]] = []
    numbers: dict[int, int] = {}

    def text(number: int) -> int:
        return strings.id(names.texts[number])

    def node(number: int) -> int:
        """Return the new number of a context; negative ones stand for themselves."""
        if number < 0:
            return number
        if number not in numbers:
            parent = node(contexts.parents[number])
            numbers[number] = len(nodes)
            nodes.append((parent, contexts.elements[contexts.node_elements[number]]))
        return numbers[number]

    for column in rows:
        if (name, column) in _TEXTS:
            rows[column] = _map(rows[column], text)
        elif (name, column) in _NODES:
            rows[column] = _map(rows[column], node)
    return pack(RecordType.STATE, _Rows(nodes), rows, strings.texts, keep=next(iter(rows)))


def _read_rows(name: str, data: bytes, names: Names, contexts: Contexts) -> Table:
    unpacked = unpack(data)
    try:
        header = _rows_decoder.decode(unpacked.header)
    except (msgspec.DecodeError, ValueError) as error:
        raise DecodeError(f"linker state: {error}") from None
    nodes: list[int] = []
    for parent, element in header.nodes:
        above = nodes[parent] if parent >= 0 else parent
        nodes.append(contexts.node(above, contexts.add_element(_element(element))))
    # Negative numbers stand for themselves: the last two places of the list.
    lookup = np.array([*nodes, UNRESOLVED, -1], np.int64)
    texts = np.array([names.id(text) for text in unpacked.strings], np.int64)
    columns = {column: unpacked.columns[column] for column in _TABLES[name][0]}
    for column, values in columns.items():
        if (name, column) in _TEXTS:
            columns[column] = texts[values]
        elif (name, column) in _NODES:
            columns[column] = lookup[values]
    return columns


def _map(values: Int64s, number: Callable[[int], int]) -> Int64s:
    """Give values new numbers in order of appearance: the old ones differ after a restart."""
    uniques, firsts, inverse = np.unique(values, return_index=True, return_inverse=True)
    numbers = np.zeros(len(uniques), np.int64)
    for i in np.argsort(firsts).tolist():
        numbers[i] = number(int(uniques[i]))
    return numbers[inverse]


def _element(element: Element) -> Element:
    """Return an element as it was before msgpack made lists of its tuples."""
    return Element(
        element.text,
        tuple((k, v) for k, v in element.fields),
        tuple((i, tuple((k, v) for k, v in fields)) for i, fields in element.matched),
    )
