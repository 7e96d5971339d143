"""The commands on a real broker, as a person runs them: what comes out, and how they fail."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from kafka_broker import Cluster, java
from tiny import PID, write_export

from schemas.events import decode
from schemas.records import DeadLetter, Output, Topic, encode_dead_letter
from schemas.types import Kind, Partition
from schemas.windows import Decision, decode_windows
from stream.kafka.client import Connection, Place
from stream.kafka.topics import Topics, delete
from stream.kafka.transport import KafkaTransport
from stream.log import partition_for
from stream.producers import publish as publishing
from stream.producers.source import open_sources
from stream.runner import RecordWriter
from stream.transport import TopicPartition, every

COMMAND = Path(sys.executable).parent / "gpu-ledger"
FAST = ("--commit-interval", "100ms")
RANGES = """
[[roles.rules]]
role = "source"
pid = "^144$"
[[roles.rules]]
role = "source"
rank = "^0$"
[[roles.rules]]
role = "rank{rank}"
rank = "."
[windows.measured]
by = "ranges"
role = "source"
name = "^(AllToAll4D|nccl:all_to_all|## )"
[windows.steady]
by = "ranges"
role = "source"
name = "^(AllToAll4D|nccl:all_to_all)"
warmup = 1
tolerance = 5.0
history = 3
"""
"""Windows by the ranges of one process of each session: the others' linkers wait for what it says."""

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Deployment:
    """Topics under a prefix of their own, and commands that use them."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.servers = servers
        self.folder = folder
        self.prefix = f"c{uuid.uuid4().hex[:8]}."
        self.where = ("--bootstrap-server", servers, "--topic-prefix", self.prefix)
        self._running: list[subprocess.Popen[str]] = []
        self._logs = itertools.count()

    def run(self, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, which is to be `code`."""
        done = subprocess.run(
            [COMMAND, *words, *self.where], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def create(self, partitions: int, *words: str) -> None:
        """Make the topics."""
        self.run("topics", "create", "--partitions", str(partitions), *words)

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        """Start a command that goes on until it is told to end; `log` reads what it says."""
        path = self.folder / f"log-{next(self._logs)}"
        with path.open("w") as log:
            process = subprocess.Popen([COMMAND, *words, *self.where], stderr=log, text=True)
        self._running.append(process)
        process.log = path  # type: ignore[attr-defined]
        return process

    def fold(self, *words: str | Path) -> Path:
        """Return the folder of ledgers that a sink wrote until all was final."""
        out = self.folder / "ledgers"
        self.run("sink", "--out", out, "--until-final", *FAST, *words)
        return out

    def transport(self) -> KafkaTransport:
        """Return the topics for tests to look into."""
        return KafkaTransport(Connection(self.servers), Topics(self.prefix))

    def close(self) -> None:
        """End all that runs, and delete the topics."""
        for process in self._running:
            process.kill()
            process.wait()
        with contextlib.suppress(Exception), Connection(self.servers).admin() as admin:
            delete(admin, Topics(self.prefix))


def said(process: subprocess.Popen[str]) -> str:
    """Return what a started command has said so far."""
    text: str = process.log.read_text()  # type: ignore[attr-defined]
    return text


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> int:
    """Tell a command to end, and return its exit code."""
    process.send_signal(number)
    return process.wait(60)


def until(process: subprocess.Popen[str], text: str, times: int = 1) -> None:
    """Wait until a started command has said something so often."""
    deadline = time.monotonic() + 60
    while said(process).count(text) < times:
        assert process.poll() is None, said(process)
        assert time.monotonic() < deadline, said(process)
        time.sleep(0.05)


@pytest.fixture
def made(kafka: str, tmp_path: Path) -> Iterator[Deployment]:
    """Return a deployment without topics."""
    deployment = Deployment(kafka, tmp_path)
    try:
        yield deployment
    finally:
        deployment.close()


@pytest.fixture(scope="module")
def sessions(captures: Path) -> dict[str, list[Path]]:
    """Return the captures of two real sessions."""
    return {
        "two_ranks": [captures / "two_ranks_training_2026.2.sqlite"],
        "dlrm8": sorted(captures.glob("dlrm8_*")),
    }


@pytest.fixture(scope="module")
def expected(
    sessions: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[bytes, bytes]]:
    """Return their ledgers and groups as `run` makes them."""
    folder = tmp_path_factory.mktemp("expected")
    config = folder / "ranges.toml"
    config.write_text(RANGES)
    for label, paths in sessions.items():
        words: list[str | Path] = [
            COMMAND,
            "run",
            *paths,
            "--label",
            label,
            "--config",
            config,
            "--out",
            folder / label,
        ]
        subprocess.run(words, check=True, capture_output=True)
    return {label: files(folder / label) for label in sessions}


def files(folder: Path) -> tuple[bytes, bytes]:
    """Return ledger and groups, without what may differ between two ways to the same ledger."""
    ledger = json.loads((folder / "ledger.json").read_bytes())
    for key in ("generated_at", "seconds", "delivery", "run"):
        del ledger[key]
    return json.dumps(ledger).encode(), (folder / "groups.csv").read_bytes()


def records_of(
    monkeypatch: pytest.MonkeyPatch, paths: Sequence[Path], label: str, partitions: int
) -> list[Output]:
    """Return the records of a session, in many small slices."""
    monkeypatch.setattr(publishing, "SLICE_ROWS", 200)
    outputs: list[Output] = []
    sources = open_sources(paths)
    with contextlib.ExitStack() as stack:
        for source in sources:
            stack.callback(source.close)
        publishing.publish(publishing.prepare(sources), label, outputs.extend, partitions)
    return outputs


# The same ledger


@pytest.mark.parametrize(("partitions", "linkers"), [(1, 1), (3, 2)])
def test_the_ledger_is_that_of_run(
    made: Deployment,
    sessions: dict[str, list[Path]],
    expected: dict[str, tuple[bytes, bytes]],
    partitions: int,
    linkers: int,
) -> None:
    """Published, linked and folded on Kafka, two sessions give the bytes that `run` gives, a repetition or not."""
    config = made.folder / "ranges.toml"
    config.write_text(RANGES)
    made.create(partitions)
    running = [made.start("link", "--config", config, *FAST) for _ in range(linkers)]
    for label, paths in sessions.items():
        assert made.run("publish", *paths, "--label", label).stdout.startswith(f"{label}: ")
    made.run("publish", *sessions["dlrm8"], "--label", "dlrm8")
    out = made.fold("--config", config)
    assert {label: files(out / label) for label in sessions} == expected
    assert [end(process) for process in running] == [0] * linkers


def test_linkers_join_and_leave_while_events_flow(
    made: Deployment,
    sessions: dict[str, list[Path]],
    expected: dict[str, tuple[bytes, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One to four linkers over 12 partitions come, go and are killed in the middle: the same bytes.

    The process whose ranges cut the time is on another partition than others' kernels.
    """
    config = made.folder / "ranges.toml"
    config.write_text(RANGES)
    made.create(12)
    label = "dlrm8"
    outputs = records_of(monkeypatch, sessions[label], label, 12)
    used = {partition_for(output.key, 12) for output in outputs if output.partition is None}
    assert len(used) > 1
    part = -(-len(outputs) // 6)
    parts = [outputs[low : low + part] for low in range(0, len(outputs), part)]
    running = [made.start("link", "--config", config, *FAST)]
    until(running[0], ": restored", 12)
    with made.transport() as transport, RecordWriter(transport) as writer:
        for number, some in enumerate(parts):
            for output in some:
                writer.write(output)
            writer.commit()
            if number < 3:
                running.append(made.start("link", "--config", config, *FAST))
                until(running[-1], ": restored")
            elif number == 3:
                assert end(running.pop(0)) == 0
            elif number == 4:
                end(running.pop(0), signal.SIGKILL)
    out = made.fold("--config", config)
    for process in running:
        assert end(process) == 0
    assert files(out / label) == expected[label]


# Records that cannot be read


def test_poison_in_the_middle_is_put_aside_whole(
    made: Deployment, sessions: dict[str, list[Path]], expected: dict[str, tuple[bytes, bytes]]
) -> None:
    """Whatever stands between good records is counted and kept with its reason; the ledger is right."""
    config = made.folder / "ranges.toml"
    config.write_text(RANGES)
    made.create(1, "--max-message-bytes", str(32 << 20))
    outputs: list[Output] = []
    sources = open_sources(sessions["two_ranks"])
    publishing.publish(publishing.prepare(sources), "two_ranks", outputs.extend, 1)
    good = outputs[len(outputs) // 2].value
    poison = poisons(good)
    with made.transport() as transport:
        half = len(outputs) // 2
        with RecordWriter(transport) as writer:
            for output in outputs[:half]:
                writer.write(output)
        place = transport.topics.place(TopicPartition(Topic.EVENTS, Partition(0)))
        with transport.connection.producer("foreign", None) as foreign:
            for value in poison.values():
                one = foreign.send(place, outputs[half].key, value)
                foreign.push()
                foreign.confirm(one, 20)
        with RecordWriter(transport) as writer:
            for output in outputs[half:]:
                writer.write(output)
        running = made.start("link", "--config", config, *FAST)
        out = made.fold("--config", config)
        assert end(running) == 0
        ledger = json.loads((out / "two_ranks" / "ledger.json").read_bytes())
        assert ledger["delivery"]["dead_letters"] == len(poison)
        assert files(out / "two_ranks") == expected["two_ranks"]

        listed = [
            json.loads(line) for line in made.run("topics", "dead-letter", "--json").stdout.splitlines()
        ]
        assert [one["from"]["offset"] for one in listed] == [*range(half, half + len(poison))]
        whole = [
            msgspec.msgpack.decode(record.value or b"", type=DeadLetter).value
            for record in transport.records(TopicPartition(Topic.DEAD_LETTER, Partition(0)))
        ]
        assert whole == [*poison.values()]
        assert all(one["why"] for one in listed)
        table = made.run("topics", "dead-letter").stdout
        assert "16,777,216" in table
        done = made.run("topics", "dead-letter", "--put-back")
        assert done.stdout == f"0 records put back, {len(poison)} not\n"
        assert "still cannot be read" in done.stderr


def poisons(good: bytes) -> dict[str, bytes | None]:
    """Return records that are none, by what is wrong with them."""
    flipped = bytearray(good)
    flipped[-1] ^= 1
    return {
        "random bytes": os.urandom(1000),
        "wrong magic": b"NOPE" + good[4:],
        "newer major version": good[:4] + bytes([good[4] + 1]) + good[5:],
        "truncated": good[: len(good) // 2],
        "lying length": good[:12] + b"\xff\xff\xff\x7f" + good[16:],
        "bad CRC": bytes(flipped),
        "empty": b"",
        "no value": None,
        "text": b'{"hello": "world"}\n',
        "1 MiB": os.urandom(1 << 20),
        "16 MiB": os.urandom(16 << 20),
    }


def test_records_of_foreign_programs_are_put_aside(made: Deployment, root: Path) -> None:
    """Java's producer, with every compression it knows, headers and no key: dead letters, and no more."""
    made.create(1)
    capture = write_export(made.folder / "tiny.sqlite")
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    command = java(
        str(root / "tests" / "ForeignProducer.java"), made.servers, f"{made.prefix}events", *codecs
    )
    made.run("publish", capture, "--keep-open")
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    made.run("publish", capture)
    running = made.start("link", *FAST)
    out = made.fold()
    assert end(running) == 0
    ledger = json.loads((out / "tiny" / "ledger.json").read_bytes())
    assert ledger["kernel_events"] == 1
    assert ledger["delivery"]["dead_letters"] == len(codecs)


def test_a_dead_letter_that_can_be_read_by_now_is_put_back(made: Deployment) -> None:
    """After an update that reads it, a dead letter goes back to where it came from, and is linked."""
    made.create(2)
    capture = write_export(made.folder / "tiny.sqlite", kernels=("gemm", "relu"))
    outputs: list[Output] = []
    publishing.publish(
        publishing.prepare(open_sources([capture])), "tiny", outputs.extend, 2, end_session=False
    )
    with made.transport() as transport:
        for output in outputs:
            # As if a linker of before the update had been here.
            partition = partition_for(output.key, 2)
            letter = DeadLetter("unknown", Topic.EVENTS, partition, 0, output.key, output.value)
            place = transport.topics.place(TopicPartition(Topic.DEAD_LETTER, partition))
            with transport.connection.producer("before", None) as linker:
                one = linker.send(place, output.key, encode_dead_letter(letter))
                linker.push()
                linker.confirm(one, 20)
        assert made.run("topics", "dead-letter", "--put-back").stdout == (
            f"{len(outputs)} records put back, 0 not\n"
        )
        put = [r.value for place in every(Topic.EVENTS, 2) for r in transport.records(place)]
        assert sorted(map(bytes, filter(None, put))) == sorted(output.value for output in outputs)
    made.run("sessions", "end", "tiny")
    running = made.start("link", *FAST)
    out = made.fold()
    end(running)
    assert json.loads((out / "tiny" / "ledger.json").read_bytes())["kernel_events"] == 2


def test_a_topic_full_of_something_else_stops_the_linker(made: Deployment) -> None:
    """Above the set number of dead letters a linker ends with exit 1 and one line, and again when restarted."""
    made.create(1)
    with made.transport() as transport, transport.connection.producer("foreign", None) as foreign:
        place = transport.topics.place(TopicPartition(Topic.EVENTS, Partition(0)))
        sends = [foreign.send(place, None, b"not ours") for _ in range(50)]
        foreign.push()
        for one in sends:
            foreign.confirm(one, 20)
    for _ in range(2):
        line = made.run("link", "--max-dead-letters", "20", code=1).stderr.splitlines()[-1]
        assert line.startswith("gpu-ledger: link-0: ")
        assert "of the last 50 records cannot be read: stopped" in line
        assert "topics dead-letter" in line
        assert "--max-dead-letters" in line


# Sessions


def test_sessions_are_shown_ended_and_forgotten(made: Deployment) -> None:
    """What is published shows before and after it is linked; an end by hand makes the ledger final."""
    made.create(2)
    assert made.run("sessions", "list").stdout == "no sessions\n"
    for label in ("one", "two", "three"):
        capture = write_export(made.folder / f"{label}.sqlite")
        made.run("publish", capture, "--label", label, "--keep-open")
    before = json.loads(made.run("sessions", "list", "--json").stdout)
    assert [*before] == ["one", "three", "two"]
    assert {view["state"] for view in before.values()} == {"open"}
    assert not any(process["linked"] for process in before["one"]["processes"])
    running = made.start("link", "--keep-ended", "1", *FAST)
    sink = made.start(
        "sink", "--keep-ended", "1", "--out", made.folder / "ledgers", "--interval", "0s", *FAST
    )
    wait_for(made, lambda view: all(p["linked"] and p["ended"] for p in view["one"]["processes"]))
    view = json.loads(made.run("sessions", "show", "one", "--json").stdout)
    assert (view["state"], view["ended_partitions"]) == ("open", [])
    assert len(view["config_digests"]) == 1
    assert [p["pid"] for p in view["processes"] if p["global_pid"]] == [PID]
    assert "no such session" in made.run("sessions", "end", "on", code=1).stderr
    for label in ("one", "two", "three"):
        assert made.run("sessions", "end", label).stdout == f"{label}: ended in 2 partitions\n"
        wait_for(made, lambda view, label=label: view[label]["state"] in ("final", "over"))
        until(sink, f"{label}: final, 1 kernels")
    assert made.run("sessions", "end", "one").stdout == "one: has its end already\n"
    wait_for(made, lambda view: [v["state"] for v in view.values()].count("over") == 2)
    # What comes back of a session that is over counts for nothing.
    made.run("publish", made.folder / "one.sqlite", "--label", "one")
    time.sleep(1.5)
    view = json.loads(made.run("sessions", "list", "--json").stdout)
    assert (view["one"]["state"], view["three"]["state"]) == ("over", "final")
    assert (end(running), end(sink)) == (0, 0)
    assert "final, and forgotten" in said(sink)
    for label in ("one", "two", "three"):
        ledger = json.loads((made.folder / "ledgers" / label / "ledger.json").read_bytes())
        assert (ledger["final"], ledger["kernel_events"]) == (True, 1)


def wait_for(made: Deployment, seen: object) -> None:
    """Wait until the sessions are seen in some state."""
    deadline = time.monotonic() + 40
    while True:
        view = json.loads(made.run("sessions", "list", "--json").stdout)
        with contextlib.suppress(KeyError):
            if seen(view):  # type: ignore[operator]
                return
        assert time.monotonic() < deadline, view
        time.sleep(0.3)


def test_a_source_that_falls_silent_is_given_up_on_once(
    made: Deployment, sessions: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `windows.max_wait` the linker writes it to WINDOWS, later linkers obey, and the ledger names it."""
    config = made.folder / "ranges.toml"
    config.write_text(RANGES.replace("[windows.measured]", '[windows]\nmax_wait = "2s"\n[windows.measured]'))
    made.create(3)
    outputs = records_of(monkeypatch, sessions["dlrm8"], "dlrm8", 3)
    source = next(
        decode(o.value).header.process
        for o in outputs
        if decode(o.value).header.kind == Kind.FACTS
        and "0" in decode(o.value).strings
        and not decode(o.value).header.process.is_capture
    )
    of_source = [o for o in outputs if decode(o.value).header.process == source]
    heard = next(i for i, o in enumerate(of_source) if decode(o.value).header.watermark is not None)
    lost = of_source[heard + 1 :]
    kept = [o for o in outputs if o not in lost and decode(o.value).header.kind != Kind.SESSION_END]
    headers = [decode(o.value).header for o in kept]
    kernels = sum(header.rows for header in headers if header.kind == Kind.KERNELS)
    with made.transport() as transport:
        with RecordWriter(transport) as writer:
            for output in kept:
                writer.write(output)
        running = made.start("link", "--config", config, *FAST)
        until(running, "waits no longer for boundaries of")
        until(running, "hears nothing of")
        time.sleep(3)  # each partition's linker has come to its own end by then
        assert end(running) == 0
        decided = decisions(transport)
        assert {(one.kind, one.process) for one in decided} == {("cut", source), ("silent", source)}
        running = made.start("link", "--config", config, *FAST)
        until(running, ": restored", 3)
        time.sleep(3)
        assert decisions(transport) == decided
        made.run("sessions", "end", "dlrm8")
        out = made.fold("--config", config)
        assert end(running) == 0
    ledger = json.loads((out / "dlrm8" / "ledger.json").read_bytes())
    assert (ledger["final"], ledger["kernel_events"]) == (True, kernels)
    assert {(cut["pid"], cut["reason"]) for cut in ledger["quality"]["cuts"]} == {(source.pid, "max_wait")}


def decisions(transport: KafkaTransport) -> list[Decision]:
    """Return what has been decided by the clock on the wall."""
    records = [r for place in every(Topic.WINDOWS, 3) for r in transport.records(place)]
    return [one.decision for r in records if (one := decode_windows(r.value or b"")).decision]


# Services


def test_readiness_means_restored_and_life_needs_no_broker(made: Deployment) -> None:
    """/readyz says what is missing until all is restored; /healthz answers even if no broker does."""
    port = free_port()
    with subprocess.Popen(
        [COMMAND, "link", "--bootstrap-server", "127.0.0.1:1", "--listen", str(port)], stderr=subprocess.PIPE
    ) as alone:
        assert ask(port, "/healthz") == (200, "alive\n")
        assert ask(port, "/readyz") == (503, "connecting to the brokers\n")
        assert ask(port, "/etc/passwd")[0] == 404
        alone.terminate()
        assert alone.wait(10) == 128 + signal.SIGTERM
    made.create(2)
    port = free_port()
    running = made.start("link", "--listen", str(port), *FAST)
    until(running, ": restored", 2)
    deadline = time.monotonic() + 10
    while ask(port, "/readyz") != (200, "ready\n"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert ask(port, "/healthz") == (200, "alive\n")
    assert end(running) == 0
    assert "listening on 127.0.0.1" in said(running)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ask(port: int, path: str) -> tuple[int, str]:
    """Return what the endpoint answers; wait until there is one."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_sink_that_is_told_to_end_writes_what_it_has(made: Deployment) -> None:
    """SIGTERM commits, writes the files and ends with 0; what is there is marked as not final."""
    made.create(1)
    capture = write_export(made.folder / "tiny.sqlite")
    made.run("publish", capture, "--label", "a/b .. c", "--keep-open")
    running = made.start("link", *FAST)
    sink = made.start("sink", "--out", made.folder / "out", "--interval", "1h", *FAST)
    wait_for(made, lambda view: all(p["linked"] and p["ended"] for p in view["a/b .. c"]["processes"]))
    time.sleep(1.5)
    assert end(sink) == 0
    [folder] = (made.folder / "out").iterdir()
    assert folder.name == "a%2Fb .. c"
    ledger = json.loads((folder / "ledger.json").read_bytes())
    assert (ledger["label"], ledger["final"], ledger["kernel_events"]) == ("a/b .. c", False, 1)
    assert end(running) == 0


def test_another_configuration_is_refused_in_one_line(made: Deployment) -> None:
    """A linker with another configuration than the state's ends with exit 1 and says which is which."""
    made.create(1)
    made.run("publish", write_export(made.folder / "tiny.sqlite"), "--keep-open")
    running = made.start("link", *FAST)
    wait_for(made, lambda view: all(p["ended"] for p in view["tiny"]["processes"]))
    assert end(running) == 0
    config = made.folder / "other.toml"
    config.write_text("[limits]\ngroups = 7\n")
    line = made.run("link", "--config", config, code=1).stderr.splitlines()[-1]
    assert "the session runs under configuration" in line


# Topics


def test_topics_say_what_is_different(made: Deployment) -> None:
    """`create` makes what is missing and names what differs; `describe` shows all of it."""
    assert "has no topics" in made.run("topics", "describe", code=1).stderr
    assert "made" in made.run("topics", "create", "--partitions", "2").stdout
    assert made.run("topics", "create", "--partitions", "2").stdout == (
        "all 7 topics are there, as they should be\n"
    )
    done = made.run("topics", "create", "--partitions", "3", "--retention", "1d", code=1)
    assert f"{made.prefix}events: has 2 partitions, not 3" in done.stderr
    assert f"{made.prefix}events: retention.ms is 604800000, not 86400000" in done.stderr
    done = made.run("topics", "create", "--partitions", "2", "--retention", "1d", "--alter")
    assert "is not" not in done.stderr
    described = json.loads(made.run("topics", "describe", "--json").stdout)
    assert described["wrong"] == []
    assert [topic["partitions"] for topic in described["topics"]] == [2] * 6 + [1]
    events = described["topics"][0]
    assert events["settings"]["retention.ms"] == "86400000"
    assert "--yes" in made.run("topics", "delete", code=2).stderr
    assert made.run("topics", "delete", "--yes").stdout.count(": deleted\n") == 7
    assert "make them with `gpu-ledger topics create`" in made.run("link", code=1).stderr


# Producing


def test_publish_gives_up_after_its_time_with_a_count(tmp_path: Path, kafka: str) -> None:  # noqa: ARG001 (skips)
    """While no broker takes records it waits and says so; then exit 1, and what was delivered and what not."""
    with Cluster.start(tmp_path / "broker") as cluster:
        made = Deployment(cluster.servers, tmp_path)
        made.create(1)
        capture = write_export(tmp_path / "big.sqlite", kernels=[f"k{i % 9}" for i in range(120_000)])
        process = made.start("publish", capture, "--delivery-timeout", "8s")
        try:
            with made.transport() as transport:
                events = Place(transport.topics.name(Topic.EVENTS), 0)
                deadline = time.monotonic() + 60
                while not transport.ends([events])[events]:
                    assert process.poll() is None, said(process)
                    assert time.monotonic() < deadline
                    time.sleep(0.002)
                cluster.nodes[0].freeze()
            code = process.wait(60)
        finally:
            cluster.nodes[0].thaw()
        if code == 0:
            pytest.skip("all was delivered before the broker could be stopped")
        text = said(process)
        assert code == 1, text
        assert "brokers have acknowledged nothing for" in text
        line = text.splitlines()[-1]
        assert "gave up publishing: " in line
        assert "were delivered" in line
        assert "publish the same again" in line
        # Again, now that it answers: what was delivered is not counted twice.
        made.run("publish", capture)
        running = made.start("link", *FAST)
        out = made.fold()
        end(running)
        ledger = json.loads((out / "big" / "ledger.json").read_bytes())
        assert (ledger["kernel_events"], ledger["quality"]["missing_rows"]) == (120_000, 0)
        made.close()


def test_no_broker_is_one_line(tmp_path: Path) -> None:
    """Where nobody listens a command ends with exit 1 and one line that names the address."""
    capture = write_export(tmp_path / "tiny.sqlite")
    words: list[str | Path] = ["publish", capture, "--bootstrap-server", "127.0.0.1:9"]
    done = subprocess.run(
        [COMMAND, *words, "--delivery-timeout", "1s"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-ledger: 127.0.0.1:9: no broker answers within 1 s")
    assert done.stderr.count("\n") == 1


# Security


def test_refusals_are_one_line_and_hold_no_secret(kafka: str, tmp_path: Path) -> None:  # noqa: ARG001 (skips)
    """A wrong password, a certificate nobody trusts, missing rights: exit 1, one line, no password in it."""
    with Cluster.start(tmp_path / "secure", secure=True) as cluster:
        secured = cluster.secured
        assert secured is not None
        capture = write_export(tmp_path / "tiny.sqlite")
        properties = tmp_path / "client.properties"

        def refusal(*words: str | Path, user: str, password: str, trusted: bool = True) -> str:
            trust = f"ssl.truststore.location={secured.certificate}\n" if trusted else ""
            properties.write_text(
                f"security.protocol=SASL_SSL\n{trust}sasl.mechanism=PLAIN\n"
                "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'username="{user}" password="{password}";\n'
            )
            properties.chmod(0o600)
            where: list[str | Path] = ["--bootstrap-server", secured.servers, "--command-config", properties]
            done: subprocess.CompletedProcess[str] = subprocess.run(
                [COMMAND, *words, *where], capture_output=True, text=True, check=False, timeout=60
            )
            assert done.returncode == 1, done.stderr
            assert password not in done.stdout + done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
            return done.stderr

        commands: list[list[str | Path]] = [
            ["topics", "create"],
            ["publish", capture],
            ["link"],
            ["sink", "--out", tmp_path / "out"],
        ]
        for words in commands:
            line = refusal(*words, user="alice", password="hunter2-wrong")
            assert "it refuses user or password; check sasl.jaas.config" in line
        line = refusal("topics", "create", user="alice", password="alice-secret", trusted=False)
        assert "its certificate is not trusted" in line
        line = refusal("topics", "create", user="bob", password="bob-secret")
        assert "not allowed" in line
        with Connection(cluster.servers).admin() as admin:
            from stream.kafka.topics import create  # noqa: PLC0415

            create(admin, Topics().plan(1))
        for words in commands[1:]:
            line = refusal(*words, user="bob", password="bob-secret")
            assert "not allowed" in line or "topics are not there" in line
