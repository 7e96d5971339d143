"""What only the clock on the wall can decide: given up once, by a record, and the same for all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from test_reference import Event, kernel, launch, opening, told

from consumers.linker import Linker, Wait
from consumers.sink import Sink
from schemas.config import Config, Limits, RoleRule, Roles, Spans, Windows
from schemas.events import Batch, Header, encode
from schemas.ledger import Ledger
from schemas.records import Output, Record, Topic
from schemas.types import NONE, Kind, Offset, Partition, Process
from schemas.windows import Decision

SOURCE, OTHER = Process("node", 7 << 24), Process("node", 8 << 24)
NOBODY = Process("", 0)
CONFIG = Config(
    roles=Roles(rules=(RoleRule(role="source", pid="^7$"),)),
    windows=Windows(steady=Spans(by="ranges", name="step", role="source", until="next")),
    limits=Limits(launch_age="40ns", launch_wait="10ns"),
)


def feed(linker: Linker, batches: Sequence[Batch]) -> list[Output]:
    """Apply batches as records of EVENTS; return what comes of them."""
    for batch in batches:
        for value in encode(batch):
            linker.apply(Record(Topic.EVENTS, Partition(0), Offset(0), b"", value))
    return linker.flush()


def hear(processor: Linker | Sink, outputs: Sequence[Output]) -> None:
    """Apply the outputs of another one, as committed."""
    for output in outputs:
        if output.topic in (Topic.WINDOWS, Topic.DELTAS) and not (
            output.topic == Topic.DELTAS and isinstance(processor, Linker)
        ):
            place = output.partition or Partition(0)
            processor.apply(Record(output.topic, place, Offset(0), output.key, output.value))


def events(*said: Event | int, process: Process = OTHER) -> list[Batch]:
    """Return what one process says, without the end of its capture."""
    return told(*said, end=False, process=process)


def finish(linkers: Sequence[Linker], outputs: list[Output]) -> Ledger:
    """End the session for two linkers that hear of each other; return the ledger."""
    end = Batch(Header("session", NOBODY, Kind.SESSION_END, "", partitions=2), {}, [])
    for linker in linkers:
        outputs += feed(linker, [end])
    for linker in linkers:
        hear(linker, outputs)
    for linker in linkers:
        outputs += linker.flush()
    sink = Sink(CONFIG)
    hear(sink, outputs)
    return sink.ledger("session")


def test_rows_wait_for_a_source_and_say_so() -> None:
    """Who holds windows back is known, and how far a cut would have to go."""
    linker = Linker(CONFIG, 1)
    feed(linker, events(opening(0), launch(5), kernel(10), 30))
    assert linker.waits() == [Wait("session", NOBODY, "", NONE, 11, 1)]
    assert linker.pending == 1
    source = Linker(CONFIG, 0)
    hear(linker, feed(source, events(opening(1, "step"), 8, process=SOURCE)))
    (wait,) = linker.waits()
    assert (wait.process, wait.since, wait.until) == (SOURCE, 8, 11)
    hear(linker, feed(source, events(opening(12, "step"), 20, process=SOURCE)))
    assert linker.waits() == []


def test_a_cut_lets_rows_go_and_voids_boundaries_that_come_after_all() -> None:
    """Nobody waits for them any more, and nobody obeys them: each linker, restarted or not, and the sink."""
    ledgers = []
    more = events(launch(5), launch(20, 2), launch(45, 3), kernel(10), kernel(22, 2), kernel(46, 3), 60)
    more = [b for b in more if b.header.ordinal == 2 and b.header.rows]
    for restart in (False, True):
        source, other = Linker(CONFIG, 0), Linker(CONFIG, 1)
        outputs = feed(other, events(opening(0), launch(5), kernel(10), launch(20, 2), kernel(22, 2), 60))
        other.decide("session", Decision("cut", NOBODY, "", NONE, 23, "max_wait"))
        outputs += other.flush()
        assert other.waits() == []
        if restart:
            state, other = other.snapshot(), Linker(CONFIG, 1)
            other.restore(state)
        late = feed(
            source,
            events(
                opening(8, "step"), opening(15, "step"), opening(30, "step"), opening(40, "step"),
                    opening(50, "step"), 60,
                process=SOURCE,
            ),
        )  # fmt: skip
        outputs += late
        hear(other, late)
        outputs += feed(other, more)
        ledgers.append(finish([source, other], outputs))
    plain, restarted = (msgspec.json.encode(found) for found in ledgers)
    assert plain == restarted
    found = ledgers[0]
    assert [(c.pid, c.since_ns, c.until_ns, c.reason) for c in found.quality.cuts] == [
        (None, None, 23, "max_wait")
    ]
    assert found.windows_ns.steady == [(40, 50)]
    assert found.kernel_events == 3
    assert found.final
    assert found.quality.unended_captures == 2


def test_a_silent_process_is_named_until_it_is_heard_of() -> None:
    """Calling it silent changes nothing but what the ledger says of it."""
    linker, sink = Linker(CONFIG, 1), Sink(CONFIG)
    hear(sink, feed(linker, events(opening(0), launch(5), kernel(10), 30)))
    (capture,) = linker.open_captures()
    linker.decide(
        "session", Decision("silent", capture.process, capture.capture, capture.watermark, NONE, "max_wait")
    )
    hear(sink, linker.flush())
    assert [(s.pid, s.watermark_ns) for s in sink.ledger("session").quality.silent] == [(8, 30)]
    later = events(launch(50), 60)
    hear(sink, feed(linker, later))
    assert sink.ledger("session").quality.silent == []
