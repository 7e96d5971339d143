"""The linker and the sink against the reference, and against themselves told otherwise."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any
from unittest import mock

import folded
import msgspec
import numpy as np
import profiles
import reference
import reference_ledger
import strategies
from driver import Log, Often, events, run_linkers, run_sink
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import SESSION, Story

from consumers import linker, timeline
from consumers.files import csv_text
from consumers.sink import Sink
from schemas.config import Config
from schemas.deltas import decode_delta
from schemas.events import Batch
from schemas.ledger import Delivery, GroupRow, encode_ledger
from schemas.quantiles import bucket_of
from schemas.records import Record, Topic, decode_dead_letter
from schemas.types import NONE, Kind, Offset, Partition, Process

profiles.load()

CONFIG_WINDOWS = Config().limits.windows
randoms = st.integers(0, 2**32 - 1).map(Random)


def nonzero(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts without those of nothing."""
    return {key: count for key, count in counts.items() if count}


def deltas_of(log: Log) -> list[bytes]:
    """Return all deltas, partition by partition."""
    return [
        bytes(r.value or b"")
        for (topic, _), records in sorted(log.items())
        if topic == Topic.DELTAS
        for r in records
    ]


def suppose(story: Story, config: Config) -> None:
    """Leave out stories in which one source of boundaries follows another.

    As long as nobody knows of the second, what the first says is taken for all there is to say: if
    the second one is earlier in time and comes later, windows depend on who read what first.
    """
    assume(not reference.one_after_the_other(reference.link(strategies.told(story), config), config))


def check_against_reference(log: Log, told: Sequence[Sequence[Batch]], config: Config) -> None:
    """Fail unless the deltas of a log add up to what the reference says of the same events."""
    truth = reference.link(told, config)
    cuts = reference.cuts(truth, config)
    sums = folded.fold(map(decode_delta, deltas_of(log)), cuts, reference.nanoseconds(config.windows.length))
    assert sums.totals == reference.totals(truth)
    assert {key: count for key, (count, _) in sums.unknown.items()} == reference.unknown(truth)
    check_groups(sums, truth)
    assert sums.rows == reference.row_counts(truth)
    assert sums.memory == reference.memory(truth)
    assert sums.opaque == reference.opaque(truth)
    assert sums.graphs == reference.graphs(truth)
    for process in truth.counters.keys() | sums.counters.keys():
        expected = truth.of_session if process.is_capture else truth.counters[process]
        assert nonzero(sums.counters[process]) == nonzero(expected)
    assert {p: o for p, o in sums.offsets.items() if o} == {p: o for p, o in truth.offsets.items() if o}
    for key, lane in truth.lanes.items():
        state = sums.captures[key]
        assert (state.first, state.last) == (lane.first, lane.last)
        assert state.missing == lane.missing()
        assert state.ended == lane.ended
        assert state.pending == 0
    assert sums.ended == Counter(dict.fromkeys(range(len(told)), 1))


def check_groups(sums: folded.Folded, truth: reference.Linked) -> None:
    """Fail unless groups, their order of admission and their statistics are the reference's."""
    assert {p: g for p, g in sums.admitted.items() if g} == reference.admitted(truth, 2**63)
    expected = reference.groups(truth)
    assert {key for key, stat in sums.groups.items() if stat.count} == expected.keys()
    for key, durations in expected.items():
        stat = sums.groups[key]
        buckets = Counter(bucket_of(np.array(durations)).tolist())
        assert (stat.count, stat.total, stat.low, stat.high, stat.buckets) == (
            len(durations),
            sum(durations),
            min(durations),
            max(durations),
            buckets,
        )


def check_ledger(sink: Sink, told: Sequence[Sequence[Batch]], config: Config) -> None:
    """Fail unless the ledger has the figures that the reference has, or withholds them."""
    truth = reference.link(told, config)
    expected = reference_ledger.figures(truth, config)
    ledger = sink.ledger(SESSION)
    document = msgspec.json.decode(encode_ledger(ledger))
    for key in ("kernel_events", "link_status", "groups", "roles", "reasons", "unknown_top", "windows_ns"):
        assert document[key] == expected[key], key
    for key in ("memory", "graphs", "clock"):
        assert document[key] == expected[key], key
    assert bare(document["per_role"]) == expected["per_role"]
    windows = [window | {"per_role": bare(window["per_role"])} for window in document["windows"]]
    assert windows == expected["windows"]
    recent = {role: each["figures"] for role, each in document["coverage_recent"]["per_role"].items()}
    assert bare(recent) == reference_ledger.recent(truth, config)
    for key, value in document["coverage"].items():
        assert (value is None) == (f"coverage.{key}" in document["withheld"])
        if value is not None:
            assert value == expected["coverage"][key], key
    if reference_ledger.missing(truth):
        assert document["coverage"]["invocations_with_context"] is None
    assert document["final"] == all(lane.ended for lane in truth.lanes.values())
    check_group_rows(sink, truth, config)
    overflow = sorted(entry["pid"] for entry in document["quality"]["overflow"])
    found = {k: overflow if k == "overflow" else document["quality"][k] for k in expected["quality"]}
    assert found == expected["quality"]


def bare(per_role: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of roles without the ratios that follow from them."""
    return {
        role: {key: value for key, value in figures.items() if not key.endswith("_with_context")}
        for role, figures in per_role.items()
    }


def check_group_rows(sink: Sink, truth: reference.Linked, config: Config) -> None:
    """Fail unless `groups.csv` has the reference's groups, sums and, within 0.8 %, percentiles."""
    expected = reference_ledger.group_rows(truth, config)
    processes = {(p.host, p.pid): p for p in reference_ledger.processes(truth)}
    shared = len(processes) < len(reference_ledger.processes(truth))
    seen = []
    for row in sink.groups(SESSION).rows():
        fields = (row.device, row.graph_id, row.position)
        device, graph, position = (NONE if f is None else f for f in fields)
        group = device, tuple(json.loads(row.context)), row.kernel, graph, position
        candidates = [
            key
            for key in expected
            if (key[0].host, key[0].pid) == (row.host, row.pid) and key[1:] == (group, row.steady)
        ]
        assert shared or len(candidates) == 1
        matching = [key for key in candidates if key not in seen and agrees(row, expected[key])]
        assert matching
        seen.append(matching[0])
    assert len(seen) == len(expected)


def agrees(row: GroupRow, durations: Sequence[int]) -> bool:
    """Tell whether a row of `groups.csv` is of these durations."""
    exact = (len(durations), sum(durations), min(durations), max(durations))
    near = all(
        1000 * abs(estimate - reference.nearest_rank(durations, percent))
        <= 8 * reference.nearest_rank(durations, percent)
        for estimate, percent in ((row.p50_ns, 50), (row.p99_ns, 99))
    )
    return near and exact == (row.count, row.total_ns, row.min_ns, row.max_ns)


def said(sink: Sink, session: str = SESSION, **parts: Any) -> tuple[bytes, str]:
    """Return the bytes of the ledger and of the groups.

    But for what happened on the way, and for parts of the ledger that are given anew.
    """
    parts["delivery"] = Delivery(repeated_rows=0, dead_letters=0)
    ledger = msgspec.structs.replace(sink.ledger(session), **parts)
    return encode_ledger(ledger), csv_text(sink.groups(session))


def check_conserved(sink: Sink, told: Sequence[Sequence[Batch]]) -> None:
    """Fail unless every kernel told, and its time, is in one class, of one role, in one window."""
    ledger = sink.ledger(SESSION)
    kernels = {
        (batch.header.capture, batch.header.process, batch.header.ordinal + i): max(0, duration)
        for partition in told
        for batch in partition
        if batch.kind == Kind.KERNELS
        for i, duration in enumerate(batch.columns["duration"].tolist())
    }
    assert ledger.kernel_events == len(kernels)
    assert sum(role.kernels for role in ledger.per_role.values()) == len(kernels)
    assert sum(role.gpu_ns for role in ledger.per_role.values()) == sum(kernels.values())
    for role in ledger.per_role.values():
        parts = [role.context, *role.reasons.values()]
        assert role.kernels == sum(part.kernels for part in parts)
        assert role.gpu_ns == sum(part.gpu_ns for part in parts)
    if "windows" not in ledger.withheld or len(ledger.windows):
        assert len(ledger.windows) < CONFIG_WINDOWS
        for name, role in ledger.per_role.items():
            mine = [window.per_role[name] for window in ledger.windows if name in window.per_role]
            assert role.kernels == sum(figures.kernels for figures in mine)
            assert role.gpu_ns == sum(figures.gpu_ns for figures in mine)
    rows = [*sink.groups(SESSION).rows()]
    assert sum(row.count for row in rows) == len(kernels)
    assert sum(row.total_ns for row in rows) == sum(kernels.values())


@given(strategies.stories(), strategies.configs(), st.integers(1, 3))
def test_deltas_add_up_to_what_the_reference_says(story: Story, config: Config, partitions: int) -> None:
    """Every kernel's class, context, position and window, and every counter, is the reference's."""
    suppose(story, config)
    told = strategies.told(story, partitions)
    check_against_reference(run_linkers(events(told), config, partitions=partitions), told, config)


@given(strategies.stories(), strategies.configs(), st.integers(1, 3))
def test_ledgers_have_the_figures_the_reference_has(story: Story, config: Config, partitions: int) -> None:
    """The folded ledger and its groups are those of the reference, and nothing is lost on the way."""
    suppose(story, config)
    told = strategies.told(story, partitions)
    sink = run_sink(run_linkers(events(told), config, partitions=partitions), config)
    check_ledger(sink, told, config)
    check_conserved(sink, told)


@given(strategies.stories(), strategies.configs(), st.integers(1, 3), randoms)
def test_telling_the_same_otherwise_changes_no_byte(
    story: Story, config: Config, partitions: int, random: Random
) -> None:
    """Cuts into batches, interleaving, partitions, schedules and commits leave the ledger as it is."""
    suppose(story, config)
    plain = run_sink(run_linkers(events(strategies.told(story)), config, partitions=1), config)
    told = strategies.told(story, partitions, random)
    log = run_linkers(
        events(told), config, partitions=partitions, random=random, commit_every=random.randint(1, 9)
    )
    other = run_sink(log, config, random=random, commit_every=random.randint(1, 9))
    assert said(other) == said(plain)
    check_conserved(other, told)


@given(strategies.stories(), strategies.configs(), st.integers(1, 3), randoms)
def test_repeated_records_and_files_change_no_byte(
    story: Story, config: Config, partitions: int, random: Random
) -> None:
    """What comes again, in part or as a whole, is skipped."""
    suppose(story, config)
    plain = run_sink(run_linkers(events(strategies.told(story)), config, partitions=1), config)
    told = strategies.told(story, partitions, random, repeats=True)
    other = run_sink(run_linkers(events(told), config, partitions=partitions, random=random), config)
    assert said(other) == said(plain)
    check_conserved(other, told)


@profiles.fewer()
@given(strategies.stories(), strategies.configs(), st.integers(1, 3), randoms)
def test_stopping_and_restarting_changes_no_byte(
    story: Story, config: Config, partitions: int, random: Random
) -> None:
    """Tasks stopped after every commit, and killed before some, leave the ledger as it is."""
    suppose(story, config)
    told = strategies.told(story, partitions)
    plain = run_sink(run_linkers(events(told), config, partitions=partitions), config)
    restarts = Often(random)
    log = run_linkers(
        events(told),
        config,
        partitions=partitions,
        random=random,
        commit_every=random.randint(1, 4),
        restarts=restarts,
    )
    other = run_sink(log, config, random=random, commit_every=random.randint(1, 4), restarts=restarts)
    assert said(other) == said(plain)
    check_conserved(other, told)


@given(strategies.stories(), strategies.configs(), st.integers(1, 3), randoms)
def test_what_comes_after_the_end_of_a_session_is_not_taken_in(
    story: Story, config: Config, partitions: int, random: Random
) -> None:
    """The session is over when it says so: rows that come then are counted, and nothing else changes.

    Rows that were missing at the end stay missing, even if they come then; a second telling of
    them is a repetition.
    """
    suppose(story, config)
    told = strategies.told(story, partitions)
    before = run_sink(run_linkers(events(told), config, partitions=partitions), config)
    process = Process("late", 1 << 24)
    row = {"time": 5, "duration": 5, "device": 0, "stream": 0, "correlation": 1, "name": "k"}
    row |= {"graph": NONE, "node": NONE}
    lanes = [strategies.Lane(process, "late", [], ends=True, after={}), story.lanes[0]]
    ordinals = random.sample(range(20), 6)
    for lane in lanes:
        # A process is always told of in one partition.
        partition = next((p for p in told if any(b.header.process == lane.process for b in p)), told[-1])
        partition += [
            strategies.batch_of(lane, Kind.KERNELS, [row | {"ordinal": n + i} for i in range(3)], 50)
            for n in ordinals
        ]
    log = run_linkers(
        events(told), config, partitions=partitions, commit_every=random.randint(1, 9), restarts=Often(random)
    )
    check_against_reference(log, told, config)
    after = run_sink(log, config)
    check_ledger(after, told, config)
    silent = msgspec.structs.replace(after.ledger(SESSION).quality, after_end=0)
    assert silent == before.ledger(SESSION).quality
    assert said(after, quality=silent) == said(before)


@profiles.fewer()
@given(strategies.stories(2), strategies.stories(2), strategies.configs(), st.integers(1, 3), randoms)
def test_sessions_in_one_topic_keep_apart(
    story: Story, other: Story, config: Config, partitions: int, random: Random
) -> None:
    """Two sessions of the same processes, interleaved, have the ledgers each has alone."""
    suppose(story, config)
    suppose(other, config)
    logs = {
        SESSION: strategies.told(story, partitions, random),
        "other": strategies.of_session("other", strategies.told(other, partitions, random)),
    }
    both = [
        strategies.interleaved(one, another, random)
        for one, another in zip(logs[SESSION], logs["other"], strict=True)
    ]
    log = run_linkers(
        events(both), config, partitions=partitions, random=random, commit_every=random.randint(1, 9)
    )
    sink = run_sink(log, config, random=random, commit_every=random.randint(1, 9), restarts=Often(random))
    for session, told in logs.items():
        alone = run_sink(run_linkers(events(told), config, partitions=partitions), config)
        assert said(sink, session) == said(alone, session)


@profiles.fewer()
@given(strategies.stories(), strategies.configs(), st.integers(1, 3), randoms)
def test_what_cannot_be_read_leaves_the_rest_as_it_is(
    story: Story, config: Config, partitions: int, random: Random
) -> None:
    """Anything at all between good records goes to the dead letters, and a kind not known is counted."""
    suppose(story, config)
    told = strategies.told(story, partitions)
    plain = run_sink(run_linkers(events(told), config, partitions=partitions), config)
    unknown = 0
    for partition in told:
        known = [batch for batch in partition if batch.kind != Kind.SESSION_END]
        for batch in random.sample(known, min(len(known), 2)):
            at = random.randint(partition.index(batch), len(partition) - 1)
            partition.insert(at, strategies.of_kind(random.randint(12, 99), batch))
            unknown += 1
    topic = events(told)
    letters = []
    for number in range(partitions):
        records = topic[Topic.EVENTS, number]
        for _ in range(random.randint(0, 4)):
            letters.append(value := damaged(random, [r.value for r in records if r.value]))
            key = random.choice([*(r.key for r in records), b"", b"\xff", b"no one\0x\0y", None])
            at = random.randint(0, len(records))
            records.insert(at, Record(Topic.EVENTS, Partition(number), Offset(0), key, value))
    log = run_linkers(
        topic, config, partitions=partitions, commit_every=random.randint(1, 9), restarts=Often(random)
    )
    sink = run_sink(log, config)
    quality = sink.ledger(SESSION).quality
    assert quality.odd.unknown_kinds == unknown
    odd = msgspec.structs.replace(quality.odd, unknown_kinds=0)
    assert said(sink, quality=msgspec.structs.replace(quality, odd=odd)) == said(plain)
    assert sink.ledger(SESSION).delivery.dead_letters == len(letters)
    buried = [
        decode_dead_letter(r.value or b"") for p in range(partitions) for r in log[Topic.DEAD_LETTER, p]
    ]
    assert Counter(letter.value for letter in buried) == Counter(letters)


def damaged(random: Random, good: Sequence[bytes | memoryview]) -> bytes | None:
    """Return a value that is no record: nothing, noise, or a good one cut short or with a bit turned."""
    value = bytearray(random.choice(good))
    match random.randrange(4):
        case 0:
            return random.choice([None, b""])
        case 1:
            return random.randbytes(random.randint(1, 99))
        case 2:
            return bytes(value[: random.randrange(len(value))])
        case _:
            value[random.randrange(len(value))] ^= 1 << random.randrange(8)
            return bytes(value)


@profiles.fewer()
@given(strategies.stories(), strategies.configs(), st.integers(1, 3), randoms)
def test_what_is_forgotten_is_not_missed(
    story: Story, config: Config, partitions: int, random: Random
) -> None:
    """Boundaries of a time that is over and names that nothing refers to change no byte by leaving."""
    suppose(story, config)
    told = strategies.told(story, partitions)
    plain = run_sink(run_linkers(events(told), config, partitions=partitions), config)
    with mock.patch.object(timeline, "KEPT_EDGES", 0), mock.patch.object(linker, "_COMPACT_ABOVE", 0):
        log = run_linkers(
            events(told), config, partitions=partitions, random=random, commit_every=random.randint(1, 4)
        )
    assert said(run_sink(log, config, random=random, commit_every=random.randint(1, 9))) == said(plain)
