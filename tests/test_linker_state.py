"""A linker's state: the same after a restart, and entries of what stays are not written again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

import profiles
import strategies
from driver import events
from hypothesis import given
from hypothesis import strategies as st
from strategies import Lane, Story, batch_of

from consumers import state as linker_state
from consumers.contexts import Contexts, Names
from consumers.linker import Linker
from consumers.sink import Sink
from consumers.state import read_tables
from schemas.config import Config
from schemas.events import Batch, encode
from schemas.records import Output, Record, Topic
from schemas.types import NONE, Kind, Offset, Partition, Process

profiles.load()

randoms = st.integers(0, 2**32 - 1).map(Random)
Entries = dict[str, bytes]
Meaning = dict[str, list[Any]]


@contextmanager
def blocks_of(rows: int) -> Iterator[None]:
    """Let entries have only so many rows."""
    with mock.patch.object(linker_state, "_BLOCK_ROWS", rows):
        yield


def meaning(key: str, value: bytes, config: Config) -> Meaning:
    """Return the rows of an entry column by column, with texts and contexts in place of numbers."""
    names, contexts = Names(), Contexts(config)
    lane, table, _ = key.split(".")
    rows = read_tables(lane, {key: value}, names, contexts)[table]
    found: Meaning = {column: values.tolist() for column, values in rows.items()}
    for column in {"name", "fields"} & found.keys():
        found[column] = [names.texts[number] for number in found[column]]
    if "context" in found:
        found["context"] = [n if n < 0 else contexts.path(n) for n in found["context"]]
    return found


def commits(batches: Sequence[Batch], config: Config) -> Iterator[tuple[Entries, list[Output]]]:
    """Yield the state and the outputs of a linker that commits after each record."""
    linker = Linker(config, 0)
    for record in events([batches])[Topic.EVENTS, 0]:
        linker.apply(record)
        outputs = linker.flush()
        yield linker.snapshot(), outputs


def restored(state: Mapping[str, bytes], config: Config) -> Linker:
    """Return a linker that goes on from a state."""
    linker = Linker(config, 0)
    linker.restore(state)
    return linker


@profiles.fewer()
@given(strategies.stories(), strategies.configs(), st.integers(1, 5), randoms)
def test_entries_of_rows_that_stay_keep_their_bytes(
    story: Story, config: Config, rows: int, random: Random
) -> None:
    """From one commit to the next an entry's bytes change only if its rows do."""
    (batches,) = strategies.told(story, 1, random)
    before: Entries = {}
    with blocks_of(rows):
        for state, _ in commits(batches, config):
            for key in before.keys() & state.keys():
                if before[key] != state[key] and key.count(".") == 2:
                    assert meaning(key, before[key], config) != meaning(key, state[key], config)
            before = state


@profiles.fewer()
@given(strategies.stories(), strategies.configs(), st.integers(1, 5), randoms)
def test_a_state_restored_is_the_same_state(story: Story, config: Config, rows: int, random: Random) -> None:
    """Whoever takes over writes the same entries, byte for byte, and goes on alike."""
    (batches,) = strategies.told(story, 1, random)
    with blocks_of(rows):
        linker = Linker(config, 0)
        for record in events([batches])[Topic.EVENTS, 0]:
            linker.apply(record)
            linker.flush()
            state = linker.snapshot()
            linker = restored(state, config)
            assert linker.snapshot() == state
            assert linker.flush() == []
            assert linker.snapshot() == state


@profiles.fewer()
@given(strategies.stories(), strategies.configs(), randoms)
def test_a_sinks_state_restored_is_the_same_state(story: Story, config: Config, random: Random) -> None:
    """So does a sink."""
    (batches,) = strategies.told(story, 1, random)
    sink = Sink(config)
    for _, outputs in commits(batches, config):
        for output in outputs:
            if output.topic in (Topic.DELTAS, Topic.WINDOWS):
                sink.apply(Record(output.topic, Partition(0), Offset(0), output.key, output.value))
        sink.flush()
        state = sink.snapshot()
        sink = Sink(config)
        sink.restore(state)
        assert sink.snapshot() == state


def test_an_entry_is_written_once_for_ranges_that_stay_open() -> None:
    """Ranges open for hours cost a changelog nothing while kernels come and go by the thousand."""
    lane = Lane(Process("node", 7 << 24), "capture", [], ends=True, after={})
    ranges = [{"time": n, "thread": 1, "domain": "", "name": f"r{n}", "ordinal": n} for n in range(3)]
    linker = Linker(Config(), 0)
    opened = batch_of(lane, Kind.RANGE_OPENINGS, ranges, 10)
    seen: list[Entries] = []
    for number, batch in enumerate([opened, *(busy(lane, 1_000 * step) for step in range(1, 6))]):
        (value,) = encode(batch)
        linker.apply(Record(Topic.EVENTS, Partition(0), Offset(number), b"", value))
        linker.flush()
        seen.append(linker.snapshot())
    (key,) = (key for key in seen[0] if ".ranges." in key)
    assert [state[key] for state in seen] == [seen[0][key]] * len(seen)
    changed = [{k for k in after if before.get(k) != after[k]} for before, after in itertools.pairwise(seen)]
    assert all(".facts" not in key and ".ranges." not in key for keys in changed for key in keys)


def busy(lane: Lane, time: int) -> Batch:
    """Return kernels without launches that a watermark long past them decides."""
    ordinal = time - 1_000
    row = {"duration": 1, "device": 0, "stream": 0, "correlation": NONE, "name": f"k{time}"}
    row |= {"graph": NONE, "node": NONE}
    rows = [row | {"time": 20 + ordinal + n, "ordinal": ordinal + n} for n in range(1_000)]
    return batch_of(lane, Kind.KERNELS, rows, time * 10**9)
