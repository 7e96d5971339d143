"""The reference against examples worked out by hand, one for each rule of linking.

The same examples hold the linker to the rules: what it makes of each must be what the reference
makes of it.
"""

from __future__ import annotations

from random import Random
from typing import Any

import reference
from driver import Often, events, run_linkers, run_sink
from reference import CONTEXT, NO_RANGES, NONE, NOT_CAPTURED, OUTSIDE, Linked, Work
from strategies import AGE, SESSION, WAIT, Lane, Row, batch_of
from test_properties import check_against_reference, check_ledger

from schemas.config import (
    ClockConfig,
    Config,
    Context,
    Limits,
    Rewrite,
    RoleRule,
    Roles,
    Rows,
    Spans,
    Windows,
)
from schemas.events import Batch, Header
from schemas.types import Kind, Process

PROCESS = Process("node", 7 << 24)
Event = tuple[Kind, Row]


def config(**parts: Any) -> Config:
    """Return a configuration with small limits."""
    limits = Limits(launch_age=f"{AGE}ns", launch_wait=f"{WAIT}ns", **parts.pop("limits", {}))
    context = Context(default_rewrites=False, **parts.pop("context", {}))
    windows = Windows(**({"length": "50ns"} | parts.pop("windows", {})))
    return Config(limits=limits, context=context, windows=windows, **parts)


def kernel(time: int, correlation: int = 1, duration: int = 5, name: str = "k", **more: int) -> Event:
    """Return a kernel."""
    row = {"device": 0, "stream": 0, "graph": NONE, "node": NONE, "name": name} | more
    return Kind.KERNELS, row | {"time": time, "correlation": correlation, "duration": duration}


def launch(time: int, correlation: int = 1, thread: int = 1, name: str = "cudaLaunchKernel") -> Event:
    """Return a launch."""
    return Kind.LAUNCHES, {"time": time, "thread": thread, "correlation": correlation, "name": name}


def opening(time: int, name: str = "r", thread: int = 1, domain: str = "") -> Event:
    """Return the opening of a range."""
    return Kind.RANGE_OPENINGS, {"time": time, "thread": thread, "domain": domain, "name": name}


def closing(time: int, opening: int) -> Event:
    """Return the closing of the range whose opening has an ordinal."""
    return Kind.RANGE_CLOSINGS, {"time": time, "opening": opening}


def copy(time: int, correlation: int = 1) -> Event:
    """Return a memory operation."""
    row = {"time": time, "duration": 3, "device": 0, "stream": 0, "correlation": correlation}
    return Kind.MEMORY, row | {"operation": "HtoD", "bytes": 8}


def mark(time: int, name: str) -> Event:
    """Return a mark."""
    return Kind.MARKS, {"time": time, "thread": 1, "domain": "", "name": name}


def announced(time: int, duration: int, name: str) -> Event:
    """Return a window that the application announced."""
    return Kind.WINDOWS, {"time": time, "duration": duration, "name": name}


def told(*said: Event | int, end: bool = True, process: Process = PROCESS) -> list[Batch]:
    """Return events as batches of one row each; a number is an advance of the watermark to it."""
    lane = Lane(process, "capture", [], end, {})
    counts: dict[Kind, int] = {}
    facts = {"time": 0, "thread": NONE, "key": "process.rank", "value": "0", "ordinal": 0}
    batches = [batch_of(lane, Kind.FACTS, [facts])]
    for each in said:
        if isinstance(each, int):
            batches.append(batch_of(lane, Kind.FACTS, [], each))
            continue
        kind, row = each
        counts[kind] = counts.get(kind, -1) + 1
        batches.append(batch_of(lane, kind, [{"ordinal": counts[kind]} | row]))
    if end:
        batches.append(batch_of(lane, Kind.CAPTURE_END, []))
    return batches


def linked(*said: Event | int, config: Config = config(), end: bool = True) -> Linked:  # noqa: B008
    """Return what the reference makes of events, having held the linker to it."""
    return linked_batches(told(*said, end=end), config)


def linked_batches(batches: list[Batch], config: Config) -> Linked:
    """Return what the reference makes of batches, having held the linker to it."""
    header = Header(SESSION, Process("", 0), Kind.SESSION_END, "", partitions=1)
    log = [[*batches, Batch(header, {}, [])]]
    deltas = run_linkers(events(log), config, partitions=1)
    check_against_reference(deltas, log, config)
    check_ledger(run_sink(deltas, config), log, config)
    restarts = Often(Random(0))
    stopped = run_linkers(events(log), config, partitions=1, commit_every=1, restarts=restarts)
    check_against_reference(stopped, log, config)
    return reference.link(log, config)


def only(result: Linked) -> Work:
    """Return the one kernel."""
    (found,) = result.kernels
    return found


def count(result: Linked, name: str) -> int:
    """Return one of the counters."""
    return result.counters[PROCESS][name]


# --- kernel -> launch


def test_a_kernel_belongs_to_the_launch_of_its_id() -> None:
    """The context of a kernel is that of the launch with its correlation id."""
    result = linked(opening(0, "a"), closing(20, 0), launch(10), launch(30, 2), kernel(40), kernel(41, 2))
    assert [(k.reason, k.context) for k in result.kernels] == [(CONTEXT, ("a",)), (OUTSIDE, ())]


def test_the_earliest_of_several_launches_is_taken() -> None:
    """If several calls share an id, the earliest that fits is the kernel's."""
    result = linked(opening(0, "a"), closing(15, 0), launch(20), launch(10), kernel(30))
    assert only(result).context == ("a",)


def test_a_launch_may_lie_just_so_long_before_its_kernel() -> None:
    """A launch as old as `launch_age` still counts, one older by a nanosecond does not."""
    assert only(linked(launch(0), kernel(AGE))).reason == NO_RANGES
    assert only(linked(launch(0), kernel(AGE + 1))).reason == NOT_CAPTURED


def test_a_launch_may_lie_just_so_long_after_its_kernel() -> None:
    """GPU clocks may run behind by `launch_wait`, and not by a nanosecond more."""
    result = linked(launch(WAIT), kernel(0))
    assert only(result).reason == NO_RANGES
    assert count(result, "launched_after_start") == 1
    assert result.offsets[PROCESS] == {0: -WAIT}
    assert only(linked(launch(WAIT + 1), kernel(0))).reason == NOT_CAPTURED


def test_a_launch_serves_one_kernel() -> None:
    """The second kernel of an id finds its launch used up, and is counted."""
    result = linked(launch(0), kernel(5), kernel(6))
    assert [k.reason for k in result.kernels] == [NO_RANGES, NOT_CAPTURED]
    assert count(result, "second_kernels") == 1


def test_a_kernel_that_loses_its_launch_takes_the_next() -> None:
    """Launches of one id are given out in order of decision."""
    result = linked(opening(0, "a"), closing(5, 0), launch(1), launch(8), kernel(12), kernel(10))
    assert [(k.time, k.context) for k in result.kernels] == [(10, ("a",)), (12, ())]
    assert count(result, "second_kernels") == 0


def test_a_kernel_that_came_after_its_launch_was_used_up_is_not_a_second_one() -> None:
    """What was used up before a kernel came is forgotten: nothing says it was there."""
    result = linked(launch(0), kernel(5), 20, kernel(6))
    assert [k.reason for k in result.kernels] == [NO_RANGES, NOT_CAPTURED]
    assert count(result, "second_kernels") == 0
    assert count(result, "late_kernels") == 1


def test_a_kernel_waits_for_its_launch_only_so_long() -> None:
    """Without a launch a kernel is decided once the watermark is past start + `launch_wait`."""
    at_limit = linked(kernel(0), WAIT, launch(5))
    past_limit = linked(kernel(0), WAIT + 1, launch(5))
    assert only(at_limit).reason == NO_RANGES
    assert only(past_limit).reason == NOT_CAPTURED


def test_a_graph_launch_serves_any_number_of_kernels() -> None:
    """Kernels of a replay share the id and the context of their graph launch."""
    result = linked(
        opening(0, "a"), launch(1, name="cudaGraphLaunch_v10000"), kernel(5), kernel(6), 10, kernel(12)
    )
    assert [k.context for k in result.kernels] == [("a",)] * 3
    assert result.graphs[PROCESS, NONE, False, "replays"] == 1


def test_a_graph_launch_leaves_strictly_after_its_age() -> None:
    """At start + `launch_age` a graph launch is still known, past it no more."""
    graph = launch(0, name="cuGraphLaunch")
    assert only(linked(graph, AGE, kernel(AGE))).reason == NO_RANGES
    assert only(linked(graph, AGE + 1, kernel(AGE))).reason == NOT_CAPTURED


def test_an_id_that_is_none_links_to_nothing() -> None:
    """NONE is no id, not even for two that both have it; 0 is one."""
    assert only(linked(launch(0, NONE), kernel(5, NONE))).reason == NOT_CAPTURED
    assert only(linked(launch(0, 0), kernel(5, 0))).reason == NO_RANGES


def test_ids_of_processes_do_not_mix() -> None:
    """A launch serves kernels of its own process and capture alone."""
    other = Process("node", 1 << 48 | 7 << 24)
    result = linked_batches([*told(launch(0)), *told(kernel(5), process=other)], config())
    assert only(result).reason == NOT_CAPTURED


def test_copies_link_like_kernels() -> None:
    """A memory operation has the class and context of its launch, and is no kernel."""
    result = linked(opening(0, "a"), launch(1, 1), launch(2, 2), copy(5, 1), kernel(6, 2))
    assert [w.reason for w in (*result.others, *result.kernels)] == [CONTEXT, CONTEXT]
    assert reference.memory(result) == {(PROCESS, "HtoD", CONTEXT): (1, 3, 8)}


def test_a_launch_serves_one_piece_of_work_of_whatever_kind() -> None:
    """Of all that has a launch's id the first takes it along; only kernels are counted as second."""
    result = linked(opening(0, "a"), launch(1), copy(6), copy(7), kernel(5), kernel(8))
    assert [(w.time, w.reason) for w in result.others] == [(6, NOT_CAPTURED), (7, NOT_CAPTURED)]
    assert [(w.time, w.reason) for w in result.kernels] == [(5, CONTEXT), (8, NOT_CAPTURED)]
    assert count(result, "second_kernels") == 1


def test_of_work_that_starts_together_the_kernel_is_first() -> None:
    """Ties in time are settled by the number of the kind, then by the row's."""
    opaque = {"time": 5, "duration": 7, "device": 0, "stream": 0, "correlation": 1, "graph": 3}
    result = linked(opening(0, "a"), launch(1), launch(2), copy(5), (Kind.GRAPHS, opaque), kernel(5))
    assert only(result).reason == CONTEXT
    assert [(w.kind, w.reason) for w in result.others] == [
        (Kind.MEMORY, CONTEXT),
        (Kind.GRAPHS, NOT_CAPTURED),
    ]


def test_copies_within_a_graph_share_its_launch() -> None:
    """A graph launch serves any number of copies too, and only kernels have positions."""
    result = linked(
        opening(0, "a"), launch(1, name="cudaGraphLaunch"), copy(5), kernel(6), copy(7), kernel(8)
    )
    assert [(w.reason, w.position) for w in result.others] == [(CONTEXT, NONE)] * 2
    assert [(w.reason, w.position) for w in result.kernels] == [(CONTEXT, 0), (CONTEXT, 1)]


# --- launch -> context


def test_the_context_is_what_was_open_outermost_first() -> None:
    """A range holds its start and not its end."""
    result = linked(
        opening(0, "outer"), opening(10, "inner"), closing(20, 1), closing(30, 0),
        launch(10, 1), launch(20, 2), launch(30, 3), kernel(31, 1), kernel(32, 2), kernel(33, 3),
    )  # fmt: skip
    assert [k.context for k in result.kernels] == [("outer", "inner"), ("outer",), ()]


def test_ranges_of_other_threads_do_not_matter() -> None:
    """A thread without ranges is told from one between its ranges."""
    result = linked(
        opening(0, "a", thread=2), opening(50, "b", thread=3),
        launch(10, 1, 1), launch(10, 2, 3), kernel(31, 1), kernel(32, 2),
    )  # fmt: skip
    assert [k.reason for k in result.kernels] == [NO_RANGES, NO_RANGES]
    assert only(linked(opening(0), closing(5, 0), 8, launch(10), kernel(12))).reason == OUTSIDE


def test_ranges_that_start_together_are_in_order_of_opening() -> None:
    """Of equal starts the one opened first is outside, whichever is longer."""
    result = linked(
        opening(0, "short"), opening(0, "long"), closing(9, 0), closing(20, 1), launch(5), kernel(6)
    )
    assert only(result).context == ("short", "long")


def test_a_range_of_no_length_contains_nothing() -> None:
    """A range that ends as it starts is never open, and its thread has had a range."""
    result = linked(opening(5), closing(5, 0), launch(5), kernel(6))
    assert only(result).reason == OUTSIDE
    assert count(result, "crossing_ranges") == 0


def test_a_range_without_end_is_open_to_the_end() -> None:
    """No closing: everything after it is inside."""
    assert only(linked(opening(0, "a"), 50, launch(100), kernel(101))).context == ("a",)


def test_ranges_that_cross_are_judged_by_their_times_and_counted() -> None:
    """Of two that cross the later one is inside while both are open, and goes on alone."""
    result = linked(
        opening(0, "a"), opening(10, "b"), closing(20, 0), closing(30, 1),
        launch(15, 1), launch(25, 2), kernel(31, 1), kernel(32, 2),
    )  # fmt: skip
    assert [k.context for k in result.kernels] == [("a", "b"), ("b",)]
    assert count(result, "crossing_ranges") == 1


def test_domains_that_are_left_out_never_were() -> None:
    """A filtered range is no context, and its thread has had no range by it; its closing is known."""
    result = linked(
        opening(0, "a", domain="nccl"), closing(20, 0), launch(5), kernel(6),
        config=config(context={"exclude_domains": ("nccl",)}),
    )  # fmt: skip
    assert only(result).reason == NO_RANGES
    assert count(result, "unmatched_closings") == 0


def test_the_depth_limit_keeps_the_outermost() -> None:
    """The limit acts after classification, on what a context shows."""
    result = linked(
        opening(0, "a"), opening(1, "b"), launch(5), kernel(6), config=config(context={"depth": 1})
    )
    assert only(result).context == ("a",)


def test_ranges_of_the_process_come_first_where_they_are_asked_for() -> None:
    """Start/end ranges stand before the thread's own, whenever they started."""
    said = opening(0, "own"), opening(3, "shared", thread=NONE), launch(5), kernel(6)
    assert only(linked(*said)).context == ("own",)
    assert only(linked(*said, config=config(context={"process_ranges": True}))).context == ("shared", "own")


def test_names_are_rewritten_after_all_that() -> None:
    """Rewriting changes what a context is called, and can make one of two."""
    rules = (Rewrite(match=r"step \d+", replace="step"),)
    result = linked(opening(0, "step 1"), launch(5), kernel(6), config=config(context={"rewrites": rules}))
    assert only(result).context == ("step",)


def test_a_closing_that_nobody_opened_is_counted_once_its_time_has_passed() -> None:
    """A closing may come before its opening; after its own end it is given up."""
    assert count(linked(closing(20, 0), 20, opening(0), launch(5), kernel(6)), "unmatched_closings") == 0
    assert count(linked(closing(20, 0), 21, opening(0), launch(5), kernel(6)), "unmatched_closings") == 1


# --- graphs


def test_positions_are_node_numbers_where_there_are_some() -> None:
    """The node's number is the position, in whatever order the nodes ran."""
    result = linked(launch(0, name="cudaGraphLaunch"), kernel(5, graph=2, node=1), kernel(6, graph=2, node=0))
    assert [(k.graph, k.position) for k in result.kernels] == [(2, 1), (2, 0)]
    assert reference.graphs(result) == {(PROCESS, 2, True): (1, 2)}


def test_positions_are_ranks_in_a_replay_otherwise() -> None:
    """By start, end, stream and name; counting goes on over advances."""
    result = linked(
        launch(0, name="cudaGraphLaunch"),
        kernel(5, name="z"), kernel(5, name="a"), kernel(5, duration=4, name="z", stream=9), 9, kernel(12),
    )  # fmt: skip
    assert {(k.time, k.name, k.stream): k.position for k in result.kernels} == {
        (5, "z", 9): 0,
        (5, "a", 0): 1,
        (5, "z", 0): 2,
        (12, "k", 0): 3,
    }


def test_opaque_graph_launches_are_counted_apart() -> None:
    """A row that stands for a whole replay has a class and a time, and is no kernel."""
    row = {"time": 5, "duration": 7, "device": 0, "stream": 0, "correlation": 1, "graph": 3}
    result = linked((Kind.GRAPHS, row), launch(1), end=True)
    assert result.kernels == []
    assert reference.opaque(result) == {(PROCESS, 3, NO_RANGES): (1, 7)}


def test_a_late_kernel_of_a_replay_has_no_position() -> None:
    """It cannot be ranked any more: those after it have their numbers."""
    result = linked(launch(0, name="cudaGraphLaunch"), kernel(5), 20, kernel(4), kernel(21))
    assert [(k.time, k.position) for k in result.kernels] == [(5, 0), (4, NONE), (21, 1)]


# --- time


def test_late_rows_link_by_the_same_rules() -> None:
    """A late kernel finds its launch if that is still known; a late range does not reach back."""
    result = linked(launch(0), 30, kernel(10), opening(0, "a"), end=True)
    assert only(result).reason == NO_RANGES
    assert count(result, "late_kernels") == 1
    assert count(result, "late_ranges") == 1


def test_rows_that_come_again_are_skipped_and_gaps_are_shown() -> None:
    """Ordinals show repetition and loss; a gap closes when its rows come."""
    batches = told(launch(0), kernel(5), launch(10, 2), kernel(15, 2), kernel(16, 3))
    kernels = [b for b in batches if b.kind == Kind.KERNELS]
    rest = [b for b in batches if b.kind != Kind.KERNELS]
    gone = linked_batches([*rest[:-1], kernels[0], kernels[2], kernels[0], rest[-1]], config())
    assert count(gone, "repeated_rows") == 1
    assert gone.lanes["capture", PROCESS].missing() == {Kind.KERNELS: [(1, 2)]}
    back = linked_batches([*rest[:-1], kernels[0], kernels[2], rest[-1], kernels[1]], config())
    assert back.lanes["capture", PROCESS].missing() == {}
    assert count(back, "late_kernels") == 1
    assert len(back.kernels) == 3


def lost(batches: list[Batch], kind: Kind, number: int) -> tuple[list[Batch], Batch]:
    """Return batches without one of a kind, and that one."""
    gone = [b for b in batches if b.kind == kind][number]
    return [b for b in batches if b is not gone], gone


def test_a_lost_launch_that_comes_in_time_serves_the_kernels_that_wait() -> None:
    """As long as its kernel is not decided, a launch that was lost and comes again is as good as any."""
    said = opening(0, "a"), launch(10), launch(20, 2), kernel(15), 18, kernel(25, 2), 40
    batches, gone = lost(told(*said), Kind.LAUNCHES, 0)
    at = next(i for i, b in enumerate(batches) if b.header.watermark == 18)
    back = linked_batches([*batches[: at + 1], gone, *batches[at + 1 :]], config())
    assert [k.reason for k in back.kernels] == [CONTEXT, CONTEXT]
    assert back.lanes["capture", PROCESS].missing() == {}
    never = linked_batches(batches, config())
    assert {k.time: k.reason for k in never.kernels} == {15: NOT_CAPTURED, 25: CONTEXT}
    assert never.lanes["capture", PROCESS].missing() == {Kind.LAUNCHES: [(0, 1)]}


def test_a_lost_launch_that_comes_too_late_closes_the_gap_and_changes_nothing() -> None:
    """Its kernel is decided and final, before the capture's end and after it."""
    said = launch(10), launch(20, 2), kernel(15), kernel(25, 2), 40
    batches, gone = lost(told(*said), Kind.LAUNCHES, 0)
    for back in ([*batches[:-1], gone, batches[-1]], [*batches, gone]):
        result = linked_batches(back, config())
        assert {k.time: k.reason for k in result.kernels} == {15: NOT_CAPTURED, 25: NO_RANGES}
        assert result.lanes["capture", PROCESS].missing() == {}
        assert count(result, "late_launches") == 1


def test_lost_kernels_that_come_between_the_ends_are_counted() -> None:
    """What comes after its capture has ended, and before its session has, is late and no more lost."""
    batches, gone = lost(told(launch(0), launch(10, 2), kernel(5), kernel(15, 2)), Kind.KERNELS, 0)
    result = linked_batches([*batches, gone], config())
    assert [(k.time, k.reason) for k in result.kernels] == [(15, NO_RANGES), (5, NOT_CAPTURED)]
    assert result.lanes["capture", PROCESS].missing() == {}
    assert count(result, "late_kernels") == 1


def test_a_lost_opening_leaves_its_closing_without_one() -> None:
    """A range whose opening comes after its closing was given up on is open from then on."""
    said = opening(0, "a"), opening(5, "b"), closing(20, 0), 30, launch(40), kernel(50), 60
    batches, gone = lost(told(*said), Kind.RANGE_OPENINGS, 0)
    never = linked_batches(batches, config())
    assert count(never, "unmatched_closings") == 1
    assert only(never).context == ("b",)
    at = next(i for i, b in enumerate(batches) if b.header.watermark == 30)
    back = linked_batches([*batches[: at + 1], gone, *batches[at + 1 :]], config())
    assert only(back).context == ("a", "b")
    assert count(back, "late_ranges") == 1


def test_odd_durations_are_kept_and_counted() -> None:
    """A kernel that ends before it starts counts 0 ns; one that ends as it starts is shown too."""
    result = linked(kernel(5, 1, -3), kernel(6, 2, 0), kernel(7, 3, 4))
    assert sorted(k.ns for k in result.kernels) == [0, 0, 4]
    assert (count(result, "negative_durations"), count(result, "zero_durations")) == (1, 1)


def test_decisions_are_in_order_of_their_times() -> None:
    """Later of kernel and launch, else start + `launch_wait`; ties by device, context, name, start."""
    result = linked(
        kernel(10, 1), launch(15, 1), kernel(12, 2), kernel(15, 3, name="b"), launch(3, 3), kernel(5, 4)
    )
    assert [k.time for k in result.kernels] == [15, 5, 10, 12]


def test_late_rows_after_the_end_wait_for_the_end_of_the_session() -> None:
    """After its capture's end everything is late, and decided when the session ends."""
    result = linked_batches([*told(launch(0)), told(kernel(5))[1]], config())
    assert only(result).reason == NOT_CAPTURED
    assert count(result, "late_kernels") == 1


# --- windows and counters


def test_windows_by_length_are_at_absolute_multiples() -> None:
    """A kernel is in the window that holds its start, before zero too."""
    result = linked(kernel(-1, 1), kernel(49, 2), kernel(50, 3))
    assert sorted(k.window for k in result.kernels) == [-50, 0, 50]


def test_windows_by_times_cut_everybody() -> None:
    """The timeline is cut at both ends of every span; before the first cut there is no name."""
    measured = Spans(by="times", times=((10, 20),))
    result = linked(kernel(9, 1), kernel(10, 2), kernel(20, 3), config=config(windows={"measured": measured}))
    assert [k.window for k in result.kernels] == [NONE, 10, 20]
    assert [
        reference.is_in("measured", w, result, config(windows={"measured": measured})) for w in (NONE, 10, 20)
    ] == [
        False,
        True,
        False,
    ]


def test_windows_by_ranges_cut_where_they_open_and_close() -> None:
    """A late opening is no boundary, and counted; with `until = "next"` closings are none either."""
    steady = Spans(by="ranges", name="step", role="rank0")
    said = (
        opening(10, "step"),
        closing(30, 0),
        40,
        opening(20, "step"),
        closing(45, 1),
        opening(60, "step"),
        kernel(65),
    )
    result = linked(*said, config=config(windows={"steady": steady}))
    assert sorted(e.time for e in result.edges) == [10, 30, 60, 70]
    assert count(result, "late_boundaries") == 1
    following = Spans(by="ranges", name="step", role="rank0", until="next")
    assert sorted(e.time for e in linked(*said, config=config(windows={"steady": following})).edges) == [
        10,
        60,
    ]


def test_a_range_that_nobody_closed_is_a_span_to_the_end_of_its_capture() -> None:
    """Its span ends with the last event, or where time had got to; that is not a late boundary."""
    steady = Spans(by="ranges", name="step", role="rank0")
    result = linked(opening(10, "step"), 90, config=config(windows={"steady": steady}))
    assert sorted(e.time for e in result.edges) == [10, 90]
    assert count(result, "late_boundaries") == 0


def test_spans_are_steady_if_about_as_long_as_those_before() -> None:
    """Not the first ones, and within the tolerance of the lower median of the history."""
    steady = Spans(by="ranges", name="step", role="rank0", warmup=1, tolerance=0.1, history=2)
    rules = config(windows={"steady": steady})
    lengths = [100, 110, 100, 111, 120]
    said: list[Event] = []
    for i, length in enumerate(lengths):
        said += [opening(1000 * i, "step"), closing(1000 * i + length, i)]
    result = linked(*said, config=rules)
    assert [steady for *_, steady in reference.spans("steady", result, rules)] == [
        False,
        True,
        True,
        False,
        False,
    ]


def steady(**spans: Any) -> Config:
    """Return a configuration whose steady spans come from marks of rank 0, in its clock or in UTC."""
    source = Spans(**({"by": "marks", "role": "rank0"} | spans))
    return config(windows={"steady": source}, clock=ClockConfig(role="rank0"))


def spans_of(result: Linked, rules: Config) -> list[tuple[int, int]]:
    """Return the spans that may be steady, whether they are or not."""
    return [(start, end) for start, end, _ in reference.spans("steady", result, rules)]


def test_marks_last_to_the_next_one() -> None:
    """Without a pattern for ends a mark opens a span and closes the one before."""
    rules = steady(name="^step")
    result = linked(mark(10, "step"), mark(20, "other"), mark(30, "step"), kernel(35), config=rules)
    assert spans_of(result, rules) == [(10, 30), (30, reference.FOREVER)]
    assert only(result).window == 30


def test_marks_that_end_a_span_end_the_one_opened_last() -> None:
    """An end without an opening is none; an opening without an end is open."""
    rules = steady(name="begin", end="end")
    said = mark(5, "end"), mark(10, "begin"), mark(20, "begin"), mark(30, "end"), mark(40, "end")
    result = linked(*said, config=rules)
    assert spans_of(result, rules) == [(10, reference.FOREVER), (20, 30)]
    assert reference.cuts(result, rules) == [10, 20, 30]


def test_announced_windows_end_by_themselves() -> None:
    """A window announced with its length needs no mark to end it, and takes no end from another."""
    rules = steady(name="step", end="end")
    result = linked(mark(5, "step"), announced(10, 15, "step"), mark(30, "end"), 20, kernel(26), config=rules)
    assert spans_of(result, rules) == [(5, 30), (10, 25)]
    assert only(result).window == 25
    until_next = steady(name="step")
    result = linked(announced(10, 15, "step"), mark(40, "step"), config=until_next)
    assert spans_of(result, until_next) == [(10, 25), (40, reference.FOREVER)]


def test_a_mark_and_an_announced_window_are_never_taken_for_one_another() -> None:
    """Both are the first row of their kind, and both open a span."""
    rules = steady(name="step", end="end")
    result = linked(mark(10, "step"), announced(20, 5, "step"), mark(50, "end"), config=rules)
    assert spans_of(result, rules) == [(10, 50), (20, 25)]


def test_late_marks_open_nothing_and_close_where_time_had_got_to() -> None:
    """Both are counted; after the end of the capture neither does anything."""
    rules = steady(name="begin", end="end")
    result = linked(mark(10, "begin"), 60, mark(20, "begin"), mark(30, "end"), config=rules)
    assert spans_of(result, rules) == [(10, 60)]
    assert count(result, "late_boundaries") == 2
    ended = told(mark(10, "begin"))
    result = linked_batches([*ended, told(mark(0, "x"), mark(90, "end"))[2]], rules)
    assert spans_of(result, rules) == [(10, reference.FOREVER)]
    assert count(result, "late_boundaries") == 1


def test_marks_may_carry_times_of_the_applications_clock() -> None:
    """They are brought over by the first anchor of the role, however late in the log that is."""
    rules = steady(name=r"begin (?P<ns>\d+)", end=r"end (?P<ns>\d+)", slack="20ns")
    said = mark(10, "begin 1005"), mark(40, "end 1030"), kernel(20), kernel(31), 60
    assert spans_of(linked(*said, config=rules), rules) == []
    result = linked(*said, mark(70, "clock_anchor:1070"), mark(71, "clock_anchor:1072"), config=rules)
    assert spans_of(result, rules) == [(5, 30)]
    assert [k.window for k in result.kernels] == [5, 30]


def test_a_mark_may_point_back_by_the_slack_and_no_further() -> None:
    """An opening that does is none, and counted; an end that does ends as early as it may."""
    rules = steady(name=r"begin (?P<ns>\d+)", end=r"end (?P<ns>\d+)", slack="20ns")
    anchor = mark(0, "clock_anchor:1000")
    assert spans_of(linked(anchor, mark(50, "begin 1030"), config=rules), rules) == [(30, reference.FOREVER)]
    assert spans_of(linked(anchor, mark(50, "begin 1029"), config=rules), rules) == []
    result = linked(anchor, mark(10, "begin 1005"), mark(70, "end 1040"), config=rules)
    assert spans_of(result, rules) == [(5, 50)]


def test_spans_from_a_file_are_in_the_applications_clock() -> None:
    """They cut time where the anchor of the role puts them; without one they do not."""
    rules = steady(by="file", role="", file="x.json", times=((1010, 1020),))
    said = kernel(5, 1), kernel(10, 2), kernel(20, 3), 40
    result = linked(*said, mark(50, "clock_anchor:1050"), config=rules)
    assert [k.window for k in result.kernels] == [NONE, 10, 20]
    assert [k.window for k in linked(*said, config=rules).kernels] == [NONE, NONE, NONE]


def test_two_processes_of_one_role_at_once_make_no_windows() -> None:
    """Which of them a kernel met first would decide: spans, and figures over them, are withheld."""
    rules = config(
        windows={"steady": Spans(by="ranges", name="step", role="both")},
        roles=Roles(rules=(RoleRule(role="both"),)),
    )
    said = opening(10, "step"), closing(30, 0), opening(40, "step"), closing(60, 1), kernel(45)
    other = Process("node", 8 << 24)
    result = linked_batches([*told(*said), *told(kernel(50), process=other)], rules)
    assert reference.clash("steady", result, rules)
    assert [k.window for k in result.kernels] == [NONE, NONE]


def test_row_counters_see_the_ranges_open_when_what_they_count_starts() -> None:
    """A range has the fields of all ranges open at its start, later ones over earlier ones."""
    rows = (
        Rows(name="all", count="ranges", match="fwd(?P<n>.)"),
        Rows(name="in", count="ranges", match="fwd", context=r"step (?P<s>\d)"),
    )
    rewrites = (Rewrite(match=r"ep=(?P<ep>\d)"),)
    rules = config(rows=rows, context={"rewrites": rewrites})
    result = linked(
        opening(0, "step 1 ep=5"), opening(5, "fwd1"), opening(5, "x ep=6"), opening(6, "x ep=9"),
        closing(9, 1), closing(9, 2), closing(9, 3), closing(20, 0), opening(30, "fwd2 ep=7"), config=rules,
    )  # fmt: skip
    assert sorted((r.counter, r.time, sorted(r.fields.items())) for r in result.rows) == [
        (0, 5, [("ep", "6"), ("n", "1")]),
        (0, 30, [("ep", "7"), ("n", "2")]),
        (1, 5, [("ep", "6"), ("s", "1")]),
    ]


def test_a_range_is_among_those_open_when_it_starts() -> None:
    """The pattern for what is open is tried on the range itself too, even if it has no length."""
    rules = config(rows=(Rows(name="in", count="ranges", match="step", context="(?P<s>[0-9])"),))
    result = linked(opening(0, "step 1"), opening(5, "step 2"), closing(5, 1), config=rules)
    assert [r.fields for r in result.rows] == [{"s": "1"}, {"s": "2"}]


def test_kernels_are_counted_by_name_and_context() -> None:
    """A kernel has the fields of its context, innermost last, then those of the patterns."""
    rows = (Rows(name="k", count="kernels", match="k(?P<n>.)", context="in(?P<d>.)"),)
    result = linked(
        opening(0, "in1"), opening(1, "in2"), launch(5, 1), kernel(6, 1, name="k1"), kernel(7, 2, name="k2"),
        config=config(rows=rows),
    )  # fmt: skip
    assert [r.fields for r in result.rows] == [{"d": "2", "n": "1"}]
