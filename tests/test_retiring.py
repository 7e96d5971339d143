"""Sessions that are over leave state and memory, but nothing of them is ever counted twice."""

from __future__ import annotations

from collections.abc import Sequence

import driver
import msgspec
from test_reference import kernel, launch, opening, told

from consumers.linker import Linker
from consumers.sink import Sink
from schemas.config import Config
from schemas.events import Batch, Header
from schemas.ledger import encode_ledger
from schemas.records import Record, Topic
from schemas.types import Kind, Offset, Partition, Process
from schemas.windows import Decision

CONFIG = Config()
OTHER = Process("node", 8 << 24)


def session(label: str) -> list[Batch]:
    """Return all batches of a small session, its end among them."""
    said = told(opening(0), launch(5), kernel(10), 30, process=OTHER)
    batches = [
        Batch(msgspec.structs.replace(b.header, session=label), b.columns, b.strings)
        for b in said
        if b.header.kind != Kind.SESSION_END
    ]
    return [*batches, Batch(Header(label, Process("", 0), Kind.SESSION_END, "", partitions=1), {}, [])]


def records(*batches: Batch) -> list[Record]:
    """Return batches as committed records."""
    return driver.events([batches])[Topic.EVENTS, 0]


def link(linker: Linker, *batches: Batch) -> list[Record]:
    """Apply batches; return what comes of them, as committed records."""
    for record in records(*batches):
        linker.apply(record)
    return [Record(o.topic, Partition(0), Offset(0), o.key, o.value) for o in linker.flush()]


def fold(sink: Sink, made: Sequence[Record]) -> None:
    """Apply what a linker has made."""
    for record in made:
        sink.apply(record)


def linked(count: int) -> tuple[Linker, Sink]:
    """Return a linker and a sink that have seen so many sessions through."""
    linker, sink = Linker(CONFIG, 0), Sink(CONFIG)
    for number in range(count):
        fold(sink, link(linker, *session(f"s{number}")))
        assert [output.topic for output in sink.flush()] == [Topic.SNAPSHOTS]
    return linker, sink


def test_the_last_sessions_that_ended_are_kept() -> None:
    """The oldest go first, open ones never, and a second time there is nothing to do."""
    linker, sink = linked(4)
    open_session = session("open")[:-1]
    fold(sink, link(linker, *open_session))
    sink.flush()
    assert linker.retire(2) == sink.retire(2) == ["s0", "s1"]
    assert linker.retire(2) == sink.retire(2) == []
    assert sink.sessions == ["open", "s2", "s3"]
    assert linker.retire(0) == ["s2", "s3"]


def test_states_shrink_to_a_label() -> None:
    """Of a session that is over nothing stays but its label, in an entry that seldom changes."""
    linker, sink = linked(3)
    entries = set(linker.snapshot()), set(sink.snapshot())
    linker.retire(1)
    sink.retire(1)
    after = set(linker.snapshot()), set(sink.snapshot())
    assert len(after[0]) < len(entries[0])
    assert len(after[1]) < len(entries[1])
    again = Linker(CONFIG, 0)
    again.restore(linker.snapshot())
    assert again.snapshot() == linker.snapshot()
    folded = Sink(CONFIG)
    folded.restore(sink.snapshot())
    assert folded.snapshot() == sink.snapshot()


def test_what_comes_back_of_a_session_that_is_over_counts_for_nothing() -> None:
    """Published again, it makes no delta, no boundary and no second ledger; restarted or not."""
    linker, sink = linked(2)
    linker.retire(0)
    sink.retire(0)
    for _ in range(2):
        again = Linker(CONFIG, 0)
        again.restore(linker.snapshot())
        assert link(again, *session("s0")) == []
        linker = again
    fold(sink, link(Linker(CONFIG, 0), *session("s0")))
    assert sink.flush() == []
    assert sink.sessions == []


def test_the_others_stay_as_they_are() -> None:
    """The ledger of a session does not depend on whether others have been forgotten meanwhile."""
    linker, sink = linked(1)
    alone = linked(0)
    for one, other in ((linker, sink), alone):
        fold(other, link(one, *session("mine")[:2]))
        other.flush()
        one.retire(0)
        other.retire(0)
        fold(other, link(one, *session("mine")[2:]))
        other.flush()
    assert encode_ledger(sink.ledger("mine")) == encode_ledger(alone[1].ledger("mine"))


def test_a_process_is_called_silent_once_restarted_or_not() -> None:
    """A linker that takes over does not say again what has been said, until the process has spoken."""
    linker = Linker(CONFIG, 0)
    link(linker, *told(opening(0), launch(5), kernel(10), 30, end=False, process=OTHER))
    [one] = [o for o in linker.open_captures() if not o.process.is_capture]
    linker.decide(
        one.session, Decision("silent", one.process, one.capture, one.watermark, one.watermark, "max_wait")
    )
    linker.flush()
    again = Linker(CONFIG, 0)
    again.restore(linker.snapshot())
    for each in (linker, again):
        assert [o for o in each.open_captures() if not o.process.is_capture] == []
