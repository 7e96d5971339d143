"""The sink: from deltas and boundaries to the ledger."""

from __future__ import annotations

import bisect
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from handmade import (
    SECOND,
    SESSION,
    Kernel,
    boundaries,
    capture,
    delta,
    end,
    fold,
    process,
    record,
    said,
    spans,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.sink import Sink
from schemas.config import ClockConfig, Config, Limits, RoleRule, Roles, Rows, Spans, Windows
from schemas.deltas import Anchor, Fact, RoleMatch
from schemas.errors import DecodeError, DigestMismatchError
from schemas.events import Clock
from schemas.ledger import Ledger, decode_ledger, encode_ledger
from schemas.records import Record, Topic
from schemas.types import END_OF_TIME, NONE, Class, Kind, Process

A, B = process(10, "a"), process(20, "b")
PLAIN = Config()


def ledger(config: Config, records: Iterable[Record], *, ended: bool = True) -> Ledger:
    """Return the ledger of some records, at the end of their session."""
    return fold(config, [*records, *(end(config) if ended else [])]).ledger(SESSION)


# -- a whole session, to be folded in any order ----------------------------------------------------

STORY = Config(
    roles=Roles(
        rules=(
            RoleRule(role="dit_rank{rank}", thread=r"dit-(?P<rank>\d)"),
            RoleRule(role="vae_rank{rank}", range=r"vae-(?P<rank>\d)"),
        ),
        expect=("dit_rank0", "vae_rank1"),
    ),
    windows=Windows(
        measured=Spans(by="ranges", name="measured", role="dit_rank0"),
        steady=Spans(by="ranges", name="step", role="dit_rank0", warmup=1, tolerance=0.1, history=2),
    ),
    rows=(Rows(name="forward_rows", count="ranges", match="x", role=r"vae_rank\d", key="{rank}:{ep}"),),
    limits=Limits(groups=6, windows=3, recent=2),
)
STEPS = [(10, 20), (20, 30), (31, 41), (45, 60), (60, 72), (72, 84)]
SPANS = [(12, 78)]
CUTS = sorted({t for pair in (*STEPS, *SPANS) for t in pair})


def window_of(start: int) -> int:
    """Return the window of an instant, as a linker names it."""
    at = bisect.bisect_right(CUTS, start)
    return CUTS[at - 1] if at else NONE


def story(seed: int = 1) -> list[list[Record]]:
    """Return a session of two processes as the streams of its partitions."""
    rng = random.Random(seed)
    deltas: list[list[Record]] = [[], []]
    windows: list[list[Record]] = [[], []]
    for number, who in enumerate((A, B)):
        facts = (Fact("capture", 0, 7, "thread.name", "dit-0"),) if number == 0 else ()
        roles = (RoleMatch(1, {"rank": "1"}),) if number else ()
        for low in range(0, 100, 20):
            starts = [rng.randrange(low, low + 20) for _ in range(rng.randrange(12))]
            kernels = [
                Kernel(
                    window_of(start),
                    rng.randrange(1000),
                    rng.choice([(), ("a",), ("a", "b"), ("c",)]),
                    rng.choice(["gemm", "copy"]),
                    rng.choice([*Class]),
                    device=number,
                    position=rng.choice([NONE, 0, 1]),
                )
                for start in starts
            ]
            deltas[number].append(
                delta(
                    STORY,
                    who,
                    kernels,
                    partition=number,
                    rows=[(window_of(s), 0, {"ep": f"ep{s % 2}"}, 1) for s in starts],
                    tables={"memory": [("memcpy HtoD", Class.CONTEXT, 1, 5, 64)]},
                    facts=facts if low == 40 else (),
                    roles=roles if low == 60 else (),
                    captures=(
                        capture(0, low + 19, ended=low == 80, watermark=END_OF_TIME if low == 80 else low),
                    ),
                    counters={"late_kernels": number},
                    clock_offsets={number: low - 30},
                    anchors=(Anchor(low + 1, 1000 + low),),
                )
            )
    edges = [*spans("measured", *SPANS), *spans("steady", *STEPS)]
    for low in range(0, 100, 10):
        some = [e for e in edges if low <= e.time < low + 10]
        windows[0].append(boundaries(STORY, A, some, watermark=low + 10, purposes=("measured", "steady")))
    windows[0].append(
        boundaries(STORY, A, watermark=END_OF_TIME, ended=True, purposes=("measured", "steady"))
    )
    for partition in (0, 1):
        closed, done = end(STORY, 2)[2 * partition : 2 * partition + 2]
        windows[partition].append(closed)
        deltas[partition].append(done)
    return [*deltas, *windows]


def interleaved(streams: Sequence[Sequence[Record]], order: Iterable[int]) -> list[Record]:
    """Return the records of all streams: `order` says which one is next, as long as it lasts."""
    left = [list(stream) for stream in streams]
    found = [left[i].pop(0) for i in order if left[i]]
    return [*found, *(each for stream in left for each in stream)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.sets(st.integers(0, 40)),
    st.sets(st.integers(0, 40)),
)
def test_any_order_any_commits_and_any_restarts_make_the_same_bytes(
    order: list[int], commits: set[int], restarts: set[int]
) -> None:
    """Partitions may come in any order, and commits and restarts fall anywhere."""
    expected = said(fold(STORY, interleaved(story(), ())))
    sink = Sink(STORY)
    for number, each in enumerate(interleaved(story(), order)):
        sink.apply(each)
        if number in commits | restarts:
            sink.flush()
        if number in restarts:
            state = sink.snapshot()
            sink = Sink(STORY)
            sink.restore(state)
    assert said(sink) == expected


def test_the_story_is_worth_telling() -> None:
    """The session folded above has of everything: steady windows, an overflow, counters."""
    found = fold(STORY, interleaved(story(), ())).ledger(SESSION)
    assert found.final
    assert found.roles == {"10": "dit_rank0", "20": "vae_rank1"}
    assert found.family_pids == {"dit_pids": [10], "vae_pids": [20]}
    assert found.windows_ns.steady == [(20, 30), (31, 41), (72, 84)]
    assert found.windows_ns.measured == [(12, 78)]
    assert found.coverage.steady_gpu_time_with_context is not None
    assert found.coverage.rows["forward_rows"]
    assert [o.pid for o in found.quality.overflow] == [10, 20]
    assert found.groups == 12
    assert len(found.windows) == 3
    assert found.coverage_recent.windows == 2
    assert found.quality.late.kernels == 5
    assert found.quality.cuts == []
    assert [(m.operation, m.count, m.bytes) for m in found.memory] == [("memcpy HtoD", 5, 320)] * 2


def test_nothing_is_lost_on_the_way() -> None:
    """Kernels and time add up: by class, by role, by group; those without context are the reasons."""
    sink = fold(STORY, interleaved(story(), ()))
    found, groups = sink.ledger(SESSION), sink.groups(SESSION)
    assert found.kernel_events == found.link_status.total
    assert found.link_status.context + found.link_status.no_nvtx_context == found.kernel_events
    assert sum(r.kernels for r in found.reasons.values()) == found.link_status.no_nvtx_context
    for figure in ("kernels", "gpu_ns"):
        by_role = sum(getattr(r, figure) for r in found.per_role.values())
        by_group = sum(groups.columns["count" if figure == "kernels" else "total_ns"])
        reasons = sum(getattr(r, figure) for role in found.per_role.values() for r in role.reasons.values())
        context = sum(getattr(role.context, figure) for role in found.per_role.values())
        assert by_role == by_group == reasons + context
    steady = sum(
        ns for ns, yes in zip(groups.columns["total_ns"], groups.columns["steady"], strict=True) if yes
    )
    assert steady == found.coverage.steady_gpu_ns_total


def test_state_that_stays_the_same_keeps_its_bytes() -> None:
    """A delta of one process changes neither the other's entry nor names, contexts and groups."""
    config = PLAIN
    sink = fold(config, [delta(config, p, [Kernel(0, 10, ("a",))], captures=(capture(),)) for p in (A, B)])
    before = sink.snapshot()
    sink.apply(delta(config, A, [Kernel(0, 10, ("a",))], captures=(capture(last=5),)))
    after = sink.snapshot()
    changed = {name.partition(".")[2] for name in after if after[name] != before[name]}
    assert before.keys() == after.keys()
    assert not any(name.startswith(("strings", "contexts", "groups", "process.1")) for name in changed)
    assert changed


# -- the document -----------------------------------------------------------------------------------

OLD_KEYS: dict[str, type | tuple[type, ...]] = {
    "label": str,
    "run": str,
    "generated_at": str,
    "kernel_events": int,
    "link_status": dict,
    "groups": int,
    "roles": dict,
    "dit_pids": list,
    "vae_pids": list,
    "clock": dict,
    "windows_ns": dict,
    "coverage": dict,
    "unknown_top": list,
    "seconds": float,
    "scope": str,
}


def test_the_document_has_every_old_key_with_its_old_type() -> None:
    """Who could read the old ledger can read this one."""
    found = fold(STORY, interleaved(story(), ())).ledger(SESSION)
    found = msgspec.structs.replace(found, generated_at="2026-09-10T16:08:19+0800", seconds=1.5)
    document = msgspec.json.decode(encode_ledger(found))
    assert [*document][: len(OLD_KEYS)] == [*OLD_KEYS]
    assert all(isinstance(document[key], kind) for key, kind in OLD_KEYS.items())
    assert [*document["link_status"]] == ["no_nvtx_context", "total", "context"]
    assert [*document["clock"]] == [
        "session_systemClockNs",
        "anchor_offset_ns",
        "anchor_count",
        "anchor_spread_ns",
        "used_offset_ns",
    ]
    assert [*document["coverage"]] == [
        "invocations_with_context",
        "steady_gpu_time_with_context",
        "steady_gpu_ns_total",
        "forward_rows",
    ]
    assert set(document["unknown_top"][0]) == {"role", "name", "count"}
    assert decode_ledger(encode_ledger(found)) == found


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"schema": "x"}', b'{"schema": 99}', b"\xff"])
def test_what_is_no_ledger_is_refused(text: bytes) -> None:
    """Reading another document as a ledger fails in the one way decoding fails."""
    with pytest.raises(DecodeError):
        decode_ledger(text)


def test_an_empty_session_has_a_ledger() -> None:
    """A session without kernels has no ratios, and says why."""
    found = ledger(PLAIN, [])
    assert found.final
    assert found.kernel_events == 0
    assert found.coverage.invocations_with_context is None
    assert found.withheld["coverage.invocations_with_context"] == ["there are no kernels"]
    assert len(fold(PLAIN, end(PLAIN)).groups(SESSION)) == 0


def test_a_ledger_is_final_once_all_captures_and_partitions_have_ended() -> None:
    """Neither alone is enough."""
    config = PLAIN
    body = [delta(config, A, [Kernel(0)], captures=(capture(),))]
    open_body = [delta(config, A, [Kernel(0)], captures=(capture(ended=False),))]
    ends = end(config, 2)
    assert not fold(config, body).ledger(SESSION).final
    assert not fold(config, [*body, *ends[:2]]).ledger(SESSION).final
    assert not fold(config, [*open_body, *ends]).ledger(SESSION).final
    assert fold(config, [*ends, *body]).ledger(SESSION).final


def test_a_snapshot_is_written_once_it_is_final() -> None:
    """And on every change where that is asked for."""
    config = PLAIN
    sink, eager = Sink(config), Sink(config, every_change=True)
    snapshots: list[list[bytes]] = [[], []]
    for each in [delta(config, A, [Kernel(0)], captures=(capture(),)), *end(config)]:
        for number, one in enumerate((sink, eager)):
            one.apply(each)
            snapshots[number] += [output.value for output in one.flush()]
    assert sink.flush() == eager.flush() == []
    assert snapshots[0] == [encode_ledger(sink.ledger(SESSION))] == snapshots[1][2:]
    assert [decode_ledger(s).final for s in snapshots[1]] == [False, False, True]


def test_top_kernels_without_context_are_by_count_then_role_then_name() -> None:
    """The order of ties is settled, so that the list is the same every time."""
    kernels = [
        Kernel(0, name=name, kind=Class.LAUNCH_NOT_CAPTURED)
        for name in ("b", "a", "c", "c")
        for _ in range(2)
    ]
    found = ledger(PLAIN, [delta(PLAIN, p, kernels) for p in (B, A)])
    assert [(u.role, u.name, u.count) for u in found.unknown_top] == [
        ("pid_10", "c", 4),
        ("pid_20", "c", 4),
        ("pid_10", "a", 2),
        ("pid_10", "b", 2),
        ("pid_20", "a", 2),
        ("pid_20", "b", 2),
    ]


def test_forty_of_them_are_listed_whatever_the_ties() -> None:
    """Ties at the end of the list are settled by role and name as well."""
    names = [f"k{n:03}" for n in range(100)]
    random.Random(3).shuffle(names)
    found = ledger(
        PLAIN, [delta(PLAIN, A, [Kernel(0, name=n, kind=Class.THREAD_WITHOUT_RANGES) for n in names])]
    )
    assert [u.name for u in found.unknown_top] == sorted(names)[:40]


def test_a_shared_pid_is_shown_with_its_host() -> None:
    """Two processes of one pid stay two, in roles, pids and row counters."""
    config = msgspec.structs.replace(
        PLAIN,
        roles=Roles(rules=(RoleRule(role="dit_rank{rank}", pid=""),)),
        rows=(Rows(name="n", count="kernels", match="x"),),
    )
    twin = process(10, "b")
    records = [
        delta(
            config,
            p,
            [Kernel(0)],
            captures=(capture(),),
            rows=[(0, 0, {}, n)],
            facts=(Fact("capture", 0, NONE, "process.rank", str(n)),),
        )
        for n, p in enumerate((A, twin))
    ]
    found = ledger(config, records)
    assert found.roles == {"a:10": "dit_rank0", "b:10": "dit_rank1"}
    assert found.family_pids == {"dit_pids": ["a:10", "b:10"]}
    assert found.coverage.rows == {"n": {"a:10": 0, "b:10": 1}}


def test_processes_that_only_have_a_name_are_not_listed() -> None:
    """A capture names every process of the machine."""
    records = [delta(PLAIN, A, [Kernel(0)]), delta(PLAIN, B, captures=(capture(None, None),))]
    assert ledger(PLAIN, records).roles == {"10": "pid_10"}


def test_groups_beyond_the_limit_are_counted_together() -> None:
    """`other` is in the rows, the totals stay exact, and a group once refused stays so."""
    config = msgspec.structs.replace(PLAIN, limits=Limits(groups=2))
    names = ["a", "b", "c", "d", "c", "a"]
    records = [delta(config, A, [Kernel(0, 5, (name,), name)]) for name in names]
    sink = fold(config, [*records, *end(config)])
    found = sink.ledger(SESSION)
    assert found.groups == 2
    assert [(o.kernels, o.gpu_ns) for o in found.quality.overflow] == [(3, 15)]
    columns = sink.groups(SESSION).columns
    rows = [*zip(columns["kernel"], columns["context"], columns["device"], columns["count"], strict=True)]
    assert rows == [("other", "[]", None, 3), ("a", '["a"]', 0, 2), ("b", '["b"]', 0, 1)]
    assert found.kernel_events == 6


def test_first_rows_are_admitted_before_others() -> None:
    """A group decided in this commit comes before one that was decided earlier and refused."""
    config = msgspec.structs.replace(PLAIN, limits=Limits(groups=1))
    table = {"group": [(0, -1, "refused", NONE, NONE, 0), (0, -1, "new", NONE, NONE, 1)]}
    table["stat"] = [(0, 0, 1, 5, 5, 5), (1, 0, 1, 7, 7, 7)]  # type: ignore[list-item]
    sink = fold(config, [delta(config, A, tables=table), *end(config)])  # type: ignore[arg-type]
    columns = sink.groups(SESSION).columns
    assert [*zip(columns["kernel"], columns["total_ns"], strict=True)] == [("other", 5), ("new", 7)]


def test_names_of_groups_beyond_the_limit_are_not_kept() -> None:
    """Names that never repeat do not fill the memory."""
    config = msgspec.structs.replace(PLAIN, limits=Limits(groups=2))
    sink = fold(config, [delta(config, A, [Kernel(0, 1, (f"step {n}",))]) for n in range(50)])
    assert len(sink._sessions[SESSION].groups.strings) <= 4


# -- time -------------------------------------------------------------------------------------------


def test_length_windows_are_absolute_multiples_and_the_last_ones_are_listed() -> None:
    """Instants in one window make one; only so many are listed, in order of time."""
    config = msgspec.structs.replace(PLAIN, limits=Limits(windows=3, recent=2))
    ten = 10 * SECOND
    instants = [-1, 0, 3 * SECOND, ten, 25 * SECOND, 5 * ten + 1]
    kernels = [Kernel(i, kind=Class.THREAD_WITHOUT_RANGES, name=f"at {i}") for i in instants]
    sink = Sink(config)
    for kernel in kernels:
        sink.apply(delta(config, A, [kernel]))
        sink.flush()
    for each in end(config):
        sink.apply(each)
    found = sink.ledger(SESSION)
    assert [w.span_ns for w in found.windows] == [(ten, 2 * ten), (2 * ten, 3 * ten), (5 * ten, 6 * ten)]
    assert [w.per_role["pid_10"].kernels for w in found.windows] == [1, 1, 1]
    assert found.coverage_recent.span_ns == (2 * ten, 6 * ten)
    recent = found.coverage_recent.per_role["pid_10"]
    assert recent.figures.kernels == 2
    assert [k.name for k in recent.unknown_top] == [f"at {25 * SECOND}", f"at {5 * ten + 1}"]
    assert found.kernel_events == 6
    assert sum(u.count for u in found.unknown_top) == 6


def test_a_window_is_closed_once_time_has_passed_it() -> None:
    """With every process past its end, and past what a kernel may wait for its launch."""
    ten = 10 * SECOND
    kernels = [Kernel(0), Kernel(ten)]
    for watermark, closed in ((ten, 0), (15 * SECOND - 1, 0), (15 * SECOND, 1), (25 * SECOND, 2)):
        states = [capture(watermark=w, ended=False) for w in (watermark, END_OF_TIME - 1)]
        records = [delta(PLAIN, p, kernels, captures=(s,)) for p, s in zip((A, B), states, strict=True)]
        found = ledger(PLAIN, records, ended=False)
        assert sum(w.closed for w in found.windows) == found.coverage_recent.windows == closed


def test_times_are_relative_to_the_earliest_capture() -> None:
    """Windows, spans and gaps count from the earliest zero."""
    config = msgspec.structs.replace(
        PLAIN, windows=Windows(steady=Spans(by="times", times=((1000, 2000), (3000, 3000))))
    )
    late = capture(1500, 1600, "late", clock=Clock("utc", 1500))
    early = capture(900, 1000, "early", clock=Clock("utc", 500))
    found = ledger(
        config,
        [
            delta(config, A, [Kernel(1000)], captures=(late,)),
            delta(config, B, captures=(early,)),
        ],
    )
    assert found.windows_ns.steady == [(500, 1500)]
    assert found.windows_ns.measured == [(400, 1100)]
    assert [(w.span_ns, w.steady) for w in found.windows] == [((500, 1500), True)]
    assert found.quality.blind == [(500, 1000)]
    assert found.quality.blind_ns == 500


def test_kernels_before_the_first_cut_are_in_a_window_of_their_own() -> None:
    """It has no beginning; the one after the last cut has no end."""
    config = msgspec.structs.replace(PLAIN, windows=Windows(steady=Spans(by="times", times=((100, 200),))))
    found = ledger(config, [delta(config, A, [Kernel(NONE), Kernel(100), Kernel(200)])])
    assert [(w.span_ns, w.steady) for w in found.windows] == [
        ((None, 100), False),
        ((100, 200), True),
        ((200, None), False),
    ]


def test_a_window_may_be_named_by_any_instant_in_it() -> None:
    """Linkers that have forgotten old cuts name windows by the kernel's own start."""
    config = msgspec.structs.replace(PLAIN, windows=Windows(steady=Spans(by="times", times=((100, 200),))))
    sink = fold(config, [delta(config, A, [Kernel(100), Kernel(150), Kernel(199)])])
    before = sink.ledger(SESSION).windows
    sink.flush()
    assert sink.ledger(SESSION).windows == before
    assert [(w.span_ns, w.per_role["pid_10"].kernels) for w in before] == [((100, 200), 3)]


def test_spans_from_a_file_wait_for_the_clock() -> None:
    """Times in the application's clock are placed by the session's anchor."""
    config = msgspec.structs.replace(
        PLAIN,
        windows=Windows(steady=Spans(by="file", times=((1100, 1200),))),
        clock=ClockConfig(role="pid_10"),
    )
    kernels = [Kernel(100, context=("a",)), Kernel(200)]
    body = delta(config, A, kernels, captures=(capture(),))
    without = fold(config, [body]).ledger(SESSION)
    assert without.withheld["coverage.steady_gpu_ns_total"] == [
        "no steady window: 1 spans in windows.steady: no anchor places them"
    ]
    found = ledger(config, [body, boundaries(config, A, anchor=1000)])
    assert found.windows_ns.steady == [(100, 200)]
    assert found.coverage.steady_gpu_ns_total == 10
    assert found.coverage.steady_gpu_time_with_context == 1.0


def test_marks_without_an_end_last_to_the_next_one() -> None:
    """The last of them has no known length and is never steady."""
    config = msgspec.structs.replace(
        PLAIN, windows=Windows(steady=Spans(by="marks", name="step", role="pid_10", tolerance=0.0))
    )
    edges = [edge for edge in spans("steady", (10, 0), (20, 0), (30, 0), (40, 0)) if edge.opens]
    found = ledger(config, [delta(config, A, [Kernel(30)]), boundaries(config, A, edges)])
    assert found.windows_ns.steady == [(20, 30), (30, 40)]
    assert [w.steady for w in found.windows] == [True]


def test_an_open_measured_span_lasts_to_the_end() -> None:
    """What is measured and has not closed has no end."""
    config = msgspec.structs.replace(
        PLAIN, windows=Windows(measured=Spans(by="ranges", name="m", role="pid_10", until="next"))
    )
    edges = [edge for edge in spans("measured", (10, 0)) if edge.opens]
    found = ledger(config, [delta(config, A, [Kernel(10), Kernel(NONE)]), boundaries(config, A, edges)])
    assert found.windows_ns.measured == [(10, None)]
    assert [w.measured for w in found.windows] == [False, True]


# -- the clock --------------------------------------------------------------------------------------


def clocked(role: str, trust: Any = "anchor") -> Ledger:
    """Return the ledger of two processes with anchors, in a capture with zero 1000."""
    config = msgspec.structs.replace(PLAIN, clock=ClockConfig(role=role, trust=trust))
    state = capture(clock=Clock("utc", 1000))
    whole = delta(
        config,
        Process("", 0),
        captures=(state,),
        facts=(Fact("capture", 0, NONE, "clock.system_ns", "77"),),
    )
    one = delta(config, A, captures=(state,), anchors=(Anchor(1020, 550), Anchor(1010, 530)))
    two = delta(config, B, captures=(state,), anchors=(Anchor(1010, 500),))
    return ledger(config, [two, whole, one])


def test_the_anchor_of_the_role_is_used() -> None:
    """Its first one; all of them count for the spread."""
    found = clocked("pid_20").clock
    assert (found.anchor_offset_ns, found.used_offset_ns) == (490, 490)
    assert (found.anchor_count, found.anchor_spread_ns) == (3, 40)
    assert found.session_systemClockNs == 77


def test_without_such_a_role_the_earliest_anchor_is_used() -> None:
    """Ties are settled by process."""
    assert clocked("").clock.anchor_offset_ns == clocked("nobody").clock.anchor_offset_ns == 520


def test_the_source_s_own_reading_is_used_if_that_is_trusted() -> None:
    """`clock.trust` says which."""
    found = clocked("pid_20", "system").clock
    assert (found.anchor_offset_ns, found.used_offset_ns) == (490, 77)


def test_without_anchors_there_is_no_offset() -> None:
    """Never a number that looks fine."""
    found = ledger(PLAIN, [delta(PLAIN, A, [Kernel(0)], captures=(capture(),))]).clock
    assert (found.anchor_offset_ns, found.used_offset_ns, found.anchor_spread_ns) == (None, None, None)
    assert found.anchor_count == 0


# -- what is withheld -------------------------------------------------------------------------------

STEADY = msgspec.structs.replace(
    PLAIN,
    windows=Windows(
        measured=Spans(by="times", times=((0, 50),)), steady=Spans(by="times", times=((100, 200),))
    ),
    rows=(Rows(name="n", count="kernels", match="x"),),
)
GOOD = [Kernel(0, context=("a",)), Kernel(100, context=("a",)), Kernel(100, kind=Class.LAUNCH_NOT_CAPTURED)]


def nulls(found: Ledger) -> set[str]:
    """Return which figures are null."""
    cover = found.coverage
    figures = {
        "invocations": cover.invocations_with_context,
        "steady": cover.steady_gpu_time_with_context,
        "steady ns": cover.steady_gpu_ns_total,
        "rows": cover.rows.get("n"),
    }
    return {name for name, value in figures.items() if value is None}


def body(config: Config, kernels: Sequence[Kernel] = GOOD, **state: Any) -> list[Record]:
    """Return a session of one process."""
    states = (capture(**{"first": 0, "last": 200, **state}),)
    return [delta(config, A, kernels, rows=[(0, 0, {}, 3)], captures=states)]


def test_nothing_is_withheld_of_a_good_session() -> None:
    """All figures are there when all is well."""
    found = ledger(STEADY, body(STEADY))
    assert nulls(found) == set()
    assert found.withheld == {}
    assert found.coverage.invocations_with_context == 2 / 3
    assert found.coverage.steady_gpu_time_with_context == 0.5
    assert found.coverage.rows == {"n": {"10": 3}}


def test_without_steady_windows_their_figures_are_withheld() -> None:
    """With the hint where to say what is steady."""
    config = msgspec.structs.replace(PLAIN, rows=STEADY.rows)
    found = ledger(config, body(config))
    assert nulls(found) == {"steady", "steady ns"}
    assert "windows.steady" in found.withheld["coverage.steady_gpu_time_with_context"][0]


def test_without_kernels_in_steady_windows_their_figures_are_withheld() -> None:
    """Nothing of nothing is no coverage."""
    found = ledger(STEADY, body(STEADY, GOOD[:1]))
    assert nulls(found) == {"steady", "steady ns"}
    assert found.withheld["coverage.steady_gpu_ns_total"] == ["no GPU time in steady windows"]


@pytest.mark.parametrize("kind", [Kind.KERNELS, Kind.LAUNCHES, Kind.RANGE_OPENINGS, Kind.RANGE_CLOSINGS])
def test_figures_that_lack_rows_are_withheld(kind: Kind) -> None:
    """Rows may have been lost anywhere in the time of their capture."""
    found = ledger(STEADY, body(STEADY, missing={int(kind): [(3, 5), (7, 8)]}))
    assert nulls(found) == {"invocations", "steady", "steady ns", "rows"}
    assert "per_role.pid_10" in found.withheld
    assert found.per_role["pid_10"].invocations_with_context is None
    assert found.coverage_recent.per_role["pid_10"].figures.invocations_with_context is None
    assert found.quality.missing_rows == 3
    assert [(m.kind, m.intervals) for m in found.quality.missing] == [(kind.name.lower(), [(3, 5), (7, 8)])]


def test_figures_of_other_times_are_not_withheld() -> None:
    """A capture that lacks rows and ended before a steady window leaves that alone."""
    other = delta(
        STEADY, B, [Kernel(0)], captures=(capture(60, 90, "other", missing={int(Kind.KERNELS): [(0, 1)]}),)
    )
    found = ledger(STEADY, [*body(STEADY), other])
    assert nulls(found) == {"invocations"}
    assert found.per_role["pid_10"].invocations_with_context is not None


def test_lost_marks_and_copies_say_nothing_about_kernels() -> None:
    """They are shown, and withhold nothing."""
    found = ledger(STEADY, body(STEADY, missing={int(Kind.MARKS): [(0, 1)], int(Kind.MEMORY): [(0, 9)]}))
    assert nulls(found) == set()
    assert found.quality.missing_rows == 10


def test_an_expected_role_without_kernels_withholds_coverage() -> None:
    """A rank that is not there must not pass for one that did nothing."""
    config = msgspec.structs.replace(STEADY, roles=Roles(expect=("pid_10", "pid_20")))
    found = ledger(config, body(config))
    assert nulls(found) == {"invocations", "steady", "steady ns"}
    found = ledger(config, [*body(config), delta(config, B, [Kernel(0)])])
    assert nulls(found) == {"steady", "steady ns"}
    assert found.withheld["coverage.steady_gpu_ns_total"] == [
        "expected role pid_20 has no kernels in steady windows"
    ]


RANGED = msgspec.structs.replace(
    PLAIN,
    roles=Roles(rules=(RoleRule(role="source"),)),
    windows=Windows(
        measured=Spans(by="ranges", name="m", role="source"),
        steady=Spans(by="ranges", name="s", role="source"),
    ),
    rows=(Rows(name="n", count="kernels", match="x"),),
)


def two_sources(first: tuple[int, int], second: tuple[int, int]) -> list[Record]:
    """Return a session with two processes that are sources, alive at these times."""
    found = []
    for who, (low, high) in zip((A, B), (first, second), strict=True):
        steps = [(low, low + 10), (low + 10, low + 20)]
        edges = [*spans("measured", (low, high)), *spans("steady", *steps)]
        kernels = [Kernel(low), Kernel(low + 10)]
        found.append(boundaries(RANGED, who, edges, watermark=END_OF_TIME, ended=True))
        states = (capture(low, high),)
        found.append(delta(RANGED, who, kernels, rows=[(low, 0, {}, 1)], captures=states))
    return found


def test_two_sources_at_once_withhold_what_they_decide() -> None:
    """Nothing is measured or steady then, in whatever order they came."""
    records = two_sources((0, 100), (50, 150))
    found = ledger(RANGED, records)
    assert nulls(found) == {"steady", "steady ns", "rows"}
    assert "a:10 and b:20" in found.withheld["coverage.steady_gpu_ns_total"][0]
    assert found.windows_ns.measured == found.windows_ns.steady == []
    assert not any(w.steady or w.measured for w in found.windows)
    assert not any(fold(RANGED, records).groups(SESSION).columns["steady"])
    sink = Sink(RANGED)
    for each in [*records[2:], *records[:2], *end(RANGED)]:
        sink.apply(each)
        sink.flush()
    assert encode_ledger(sink.ledger(SESSION)) == encode_ledger(found)


def test_two_sources_one_after_the_other_are_fine() -> None:
    """A process that was started again goes on as the source; it has to warm up again."""
    found = ledger(RANGED, two_sources((0, 100), (100, 200)))
    assert nulls(found) == set()
    assert found.windows_ns.measured == [(0, 100), (100, 200)]
    assert found.windows_ns.steady == [(10, 20), (110, 120)]
    assert found.coverage.rows == {"n": {"10": 1, "20": 1}}


def test_a_damaged_log_withholds_every_ratio() -> None:
    """What a delta that cannot be read would have added is not known."""
    sink = fold(STEADY, [*body(STEADY), *end(STEADY)])
    for value in (b"", b"damaged"):
        sink.apply(record(Topic.DELTAS, value))
    sink.apply(record(Topic.WINDOWS, b"damaged"))
    found = sink.ledger(SESSION)
    assert nulls(found) == {"invocations", "steady", "steady ns", "rows"}
    assert found.per_role["pid_10"].gpu_time_with_context is None
    assert found.delivery.dead_letters == 3


# -- quality ----------------------------------------------------------------------------------------


def test_quality_says_what_was_odd() -> None:
    """Counters add up, offsets keep the smallest, states keep the latest."""
    records = [
        delta(
            PLAIN,
            A,
            counters={
                "late_kernels": 1,
                "late_boundaries": 2,
                "zero_durations": 2,
                "repeated_rows": 5,
                "dead_letters": 1,
            },
            clock_offsets={0: offset, 1: 5},
            captures=(capture(pending=offset, ended=False, watermark=offset),),
        )
        for offset in (7, 3)
    ]
    found = ledger(PLAIN, records)
    assert found.quality.late.kernels == 2
    assert found.quality.late.boundaries == 4
    assert found.quality.odd.zero_durations == 4
    assert [(o.pid, o.device, o.offset_ns) for o in found.quality.clock_offsets] == [(10, 0, 3), (10, 1, 5)]
    assert found.quality.pending == 3
    assert [(w.watermark_ns, w.ended) for w in found.quality.watermarks] == [(3, False)]
    assert (found.delivery.repeated_rows, found.delivery.dead_letters) == (10, 2)


def test_a_source_is_quoted() -> None:
    """What a capture says of itself stands in the ledger, and whether it was exported whole."""
    said_of = {
        "source.file": "a.sqlite",
        "source.format": "nsys 3.11.1",
        "source.missing": "no ranges",
        "source.note": "be careful",
        "source.counts": '{"collected": 10, "exported": 9}',
        "metadata.gpu": "H200",
        "device": '{"device": 0, "name": "H200"}',
        "metadata.capture_options": '{"a": "b"}',
    }
    facts = tuple(Fact("capture", 0, NONE, key, value) for key, value in said_of.items())
    state = capture(None, None, clock=Clock("utc", 5, 10))
    found = ledger(PLAIN, [delta(PLAIN, Process("", 0), facts=facts, captures=(state,))])
    (source,) = found.quality.sources
    assert (source.file, source.format, source.missing, source.notes) == (
        "a.sqlite",
        "nsys 3.11.1",
        ["no ranges"],
        ["be careful"],
    )
    assert source.export_complete is False
    assert (source.base, source.zero_ns, source.uncertainty_ns, source.span_ns) == ("utc", 5, 10, None)
    assert found.metadata == {
        "gpu": ["H200"],
        "capture_options": [{"a": "b"}],
        "devices": [{"device": 0, "name": "H200"}],
    }


def test_graphs_say_what_their_positions_are() -> None:
    """Node numbers and orders are told apart; opaque launches have their time."""
    tables: Any = {"graph": [(7, 1, 2, 6), (7, 1, 1, 3), (NONE, 0, 1, 4)], "opaque": [(9, 0, 2, 50)]}
    found = ledger(PLAIN, [delta(PLAIN, A, tables=tables)])
    assert [(g.graph_id, g.positions, g.replays, g.kernels, g.gpu_ns) for g in found.graphs] == [
        (None, "order", 1, 4, None),
        (7, "node", 3, 9, None),
        (9, None, 2, 0, 50),
    ]


# -- refusals ---------------------------------------------------------------------------------------


def test_another_configuration_is_refused() -> None:
    """A live session stays under the configuration it was begun with."""
    for each in (delta(STEADY, A), boundaries(STEADY, A)):
        with pytest.raises(DigestMismatchError, match="replay"):
            Sink(PLAIN).apply(each)
    with pytest.raises(DigestMismatchError, match="replay"):
        Sink(PLAIN).restore(Sink(STEADY).snapshot())


def test_a_state_that_is_not_whole_is_refused() -> None:
    """Whichever entry is missing or damaged."""
    state = fold(STORY, interleaved(story(), ())).snapshot()
    needed = [name for name in state if not name.rpartition(".")[2].isdigit()]
    for name in needed:
        with pytest.raises(DecodeError):
            Sink(STORY).restore({k: v for k, v in state.items() if k != name})
    for name, entry in state.items():
        with pytest.raises(DecodeError):
            Sink(STORY).restore({**state, name: entry[:-1] + b"?" + b"\xc1"})
    newer = msgspec.msgpack.decode(state["sink"]) | {"version": 99}
    with pytest.raises(DecodeError, match="version 99"):
        Sink(STORY).restore(state | {"sink": msgspec.msgpack.encode(newer)})


def test_sessions_are_kept_apart() -> None:
    """A topic may hold many sessions; each has its own ledger."""
    sink = fold(PLAIN, [delta(PLAIN, A, [Kernel(0)])])
    assert sink.sessions == [SESSION]
    assert not sink.is_complete("another")
    with pytest.raises(KeyError):
        sink.ledger("another")


def test_quantiles_of_a_group_are_those_of_its_durations() -> None:
    """Over all deltas, clipped to the shortest and longest."""
    sink = fold(
        PLAIN, [delta(PLAIN, A, [Kernel(0, d) for d in some]) for some in ((1, 2), (3, 100), (1000,))]
    )
    row = next(sink.groups(SESSION).rows())
    assert (row.count, row.total_ns, row.min_ns, row.max_ns) == (5, 1106, 1, 1000)
    assert (row.p50_ns, row.p99_ns) == (3, 1000)


def test_rows_of_groups_are_in_one_order() -> None:
    """By pid, device, context, kernel, graph, position and steady."""
    kernels = [
        Kernel(0, 1, ("b",), "k", device=1),
        Kernel(100, 1, ("a",), "k"),
        Kernel(0, 1, ("a",), "k", graph=2, position=1),
        Kernel(0, 1, ("a",), "k", graph=2, position=0),
        Kernel(0, 1, (), "z"),
        Kernel(0, 1, ("a",), "k"),
    ]
    sink = fold(STEADY, [delta(STEADY, p, kernels) for p in (B, A)])
    rows = [*sink.groups(SESSION).rows()]
    keys = [
        (
            r.pid,
            r.device,
            r.context,
            r.kernel,
            -1 if r.graph_id is None else r.graph_id,
            r.position or 0,
            r.steady,
        )
        for r in rows
    ]
    assert keys == sorted(keys)
    assert Counter(r.steady for r in rows) == {False: 10, True: 2}


@pytest.mark.parametrize(
    ("spans_of_it", "why"),
    [
        (None, "no process has the role 'pid_10' of windows.steady"),
        ([], "none of the ranges of 'pid_10' matches 'step' of windows.steady"),
        ([(0, 10)], "1 spans by windows.steady, of which the first 1 are never steady"),
        ([(0, 10), (10, 90)], "none of 2 spans by windows.steady is steady: they differ by more than 0.1 of"),
    ],
)
def test_why_no_window_is_steady_is_said(spans_of_it: list[tuple[int, int]] | None, why: str) -> None:
    """A pattern that matches nothing reads otherwise than spans that are not alike."""
    steady = Spans(by="ranges", name="step", role="pid_10")
    config = msgspec.structs.replace(PLAIN, windows=Windows(steady=steady))
    body = [delta(config, A, [Kernel(5, context=("a",))], captures=(capture(),))]
    if spans_of_it is not None:
        body.append(boundaries(config, A, spans("steady", *spans_of_it), purposes=("steady",)))
    (reason,) = ledger(config, body).withheld["coverage.steady_gpu_ns_total"]
    assert reason.startswith(f"no steady window: {why}")
