"""The command line as a person meets it: what is printed, what is left behind, and how it fails."""

from __future__ import annotations

import csv
import gzip
import json
import multiprocessing
import os
import pty
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from tiny import write_export

from schemas.errors import InputError
from stream import cli
from stream.cli import arguments
from stream.cli.arguments import COMMANDS, SHELLS, make_parser
from stream.cli.publishing import Folders, Job, Publisher
from stream.cli.words import Parser

COMMAND = Path(sys.executable).parent / "gpu-ledger"
TRACE = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 7, "tid": 7, "ts": 0, "dur": 100},
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 7,
            "tid": 7,
            "ts": 10,
            "dur": 1,
            "args": {"correlation": 1},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "pid": 0,
            "tid": 7,
            "ts": 20,
            "dur": 5,
            "args": {"correlation": 1, "device": 0, "stream": 7},
        },
    ],
}


def run(*words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command; nothing of ours ever ends up in a traceback."""
    done = subprocess.run(
        [COMMAND, *words], capture_output=True, text=True, check=False, timeout=60, **options
    )  # type: ignore[call-overload]
    assert "Traceback" not in done.stderr
    result: subprocess.CompletedProcess[str] = done
    return result


def refusal(code: int, *words: str | Path, **options: object) -> str:
    """Run the command, which must fail with `code`, and return the one line it says."""
    done = run(*words, **options)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("gpu-ledger: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("gpu-ledger: ").rstrip("\n")


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Return a small export of three kernels in one range."""
    return write_export(tmp_path / "tiny.sqlite", kernels=("gemm", "gemm", "relu"))


def _text(path: Path) -> None:
    path.write_text("this is no database\n" * 100, encoding="utf-8")


def _truncated_database(path: Path) -> None:
    write_export(path, kernels=[f"kernel_{i}" * 50 for i in range(500)])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _truncated_header(path: Path) -> None:
    write_export(path)
    path.write_bytes(path.read_bytes()[:60])


def _other_database(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE customers (name TEXT)")
    db.close()


def _report(path: Path) -> None:
    path.write_bytes(b"NSYS\x00\x01binary" * 10)


def _cut_json(path: Path) -> None:
    path.write_text(json.dumps(TRACE)[:-40], encoding="utf-8")


def _cut_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(json.dumps(TRACE).encode())[:-20])


def _other_json(path: Path) -> None:
    path.write_text('{"name": "not a trace"}', encoding="utf-8")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("nothing here", encoding="utf-8")


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _nothing(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("a.sqlite", _text, ""),
        ("a.sqlite", _truncated_database, ""),
        ("a.sqlite", _truncated_header, ""),
        ("a.sqlite", _other_database, "Nsight Systems"),
        ("a.nsys-rep", _report, "nsys export --type sqlite"),
        ("a.json", _cut_json, ""),
        ("a.json.gz", _cut_gzip, ""),
        ("a.json", _other_json, ""),
        ("a.sqlite", _empty, "empty"),
        ("a.json", _empty, "empty"),
        ("folder", _folder, "without captures"),
        ("a.sqlite", _loop, ""),
        ("a.sqlite", _nothing, "No such file"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, name: str, make: Callable[[Path], None], says: str
) -> None:
    """What is no capture is refused with exit 1, naming the file; no output folder appears."""
    path = tmp_path / name
    make(path)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    out = tmp_path / "deep" / "out"
    line = refusal(1, "run", path, "--out", out, env={**os.environ, "TMPDIR": str(temporary)})
    assert line.startswith(f"{path}: ") or name in line
    assert says in line
    assert not out.parent.exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_one_line(export: Path) -> None:
    """A file that may not be read is named with the reason."""
    export.chmod(0)
    assert "Permission denied" in refusal(1, "run", export)


def test_one_bad_capture_among_good_ones_fails_the_run(export: Path, tmp_path: Path) -> None:
    """Nothing is half taken: the good capture alone would be another answer."""
    bad = tmp_path / "bad.sqlite"
    _text(bad)
    out = tmp_path / "out"
    assert "bad.sqlite" in refusal(1, "run", export, bad, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize("kind", ["file", "below a file", "no such disk"])
def test_an_output_folder_that_cannot_be_is_refused_before_any_work(
    export: Path, tmp_path: Path, kind: str
) -> None:
    """`--out` is made and tried before the capture is read."""
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    out = {
        "file": tmp_path / "file",
        "below a file": tmp_path / "file" / "out",
        "no such disk": Path("/proc/x/out"),
    }
    line = refusal(1, "run", export, "--out", out[kind])
    assert str(out[kind]) in line
    assert "give another --out" in line
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"


def test_no_space_in_the_output_folder_is_one_line(export: Path, tmp_path: Path) -> None:
    """A disk that takes no more bytes (here: a limit on file size) ends the run before any work."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))

    out = tmp_path / "out"
    line = refusal(1, "run", export, "--out", out, preexec_fn=limit)
    assert "File too large" in line
    assert not out.exists()


def test_what_stood_in_the_output_folder_survives_a_failure(tmp_path: Path) -> None:
    """A failing run leaves the ledger of the run before it as it was."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "ledger.json").write_text("old", encoding="utf-8")
    bad = tmp_path / "bad.sqlite"
    _text(bad)
    refusal(1, "run", bad, "--out", out)
    assert [p.name for p in out.iterdir()] == ["ledger.json"]
    assert (out / "ledger.json").read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[limits]\ngroup = 3\n", "limits.group: unknown key; did you mean 'groups'?"),
        ("[limits]\ngroups = 'x'\n", "limits.groups: must be a whole number, not a string"),
        ("[[roles.rules]]\nrole = 'x'\nprocess = '['\n", "roles.rules[0].process: not a regular expression"),
        ("limits = [\n", "not TOML"),
    ],
)
def test_a_wrong_configuration_is_one_line(export: Path, tmp_path: Path, text: str, says: str) -> None:
    """File, key and what was probably meant, with exit 1; `config check` says the same."""
    config = tmp_path / "model.toml"
    config.write_text(text, encoding="utf-8")
    line = refusal(1, "run", export, "--config", config)
    assert line.startswith(f"{config}: ")
    assert says in line
    assert refusal(1, "config", "check", config) == line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no command given"),
        (["rnu"], "did you mean 'run'?"),
        (["run"], "CAPTURE"),
        (["run", "x", "--confg", "y"], "did you mean '--config'?"),
        (["run", "x", "--partitions", "0"], "must be a whole number from 1 to 1024"),
        (["run", "x", "--log-format", "xml"], "invalid choice: 'xml'"),
        (["run", "x", "--parquet"], "--out"),
        (["run", "x", "--label", ""], "--label"),
        (["run", "x", "--run", "a\nb"], "--run"),
        (["publish", "x"], "--to"),
        (["publish", "x", "--to", "y", "--bootstrap-server", "z:1"], "--to"),
        (["config", "chek", "x"], "did you mean 'check'?"),
        (["completion", "tcsh"], "invalid choice"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(words: list[str], says: str) -> None:
    """What makes no sense is told apart from what went wrong."""
    assert says in refusal(2, *words)


def test_run_writes_both_files_and_says_what_they_say(export: Path, tmp_path: Path) -> None:
    """The summary names the session, its coverage and its contexts; stderr stays empty."""
    out = tmp_path / "out"
    done = run("run", export, "--out", out, "--label", "nightly", "--run", "r1")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("nightly: 3 kernels, ")
    assert done.stdout.endswith(f"\n\nWritten to {out}: groups.csv, ledger.json\n")
    assert "pid_4242" in done.stdout
    assert "100.00 %" in done.stdout
    assert "step" in done.stdout
    assert sorted(p.name for p in out.iterdir()) == ["groups.csv", "ledger.json"]
    ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
    assert (ledger["label"], ledger["run"], ledger["kernel_events"]) == ("nightly", "r1", 3)
    assert ledger["seconds"] > 0
    assert ledger["generated_at"]
    with (out / "groups.csv").open(encoding="utf-8", newline="") as file:
        assert {(row["kernel"], row["count"], row["context"]) for row in csv.DictReader(file)} == {
            ("gemm", "2", '["step"]'),
            ("relu", "1", '["step"]'),
        }


def test_json_prints_the_very_ledger_it_writes(export: Path, tmp_path: Path) -> None:
    """`--json` is for machines: the document and nothing else."""
    done = run("run", export, "--json", "--out", tmp_path / "out")
    assert done.returncode == 0
    assert done.stdout == (tmp_path / "out" / "ledger.json").read_text(encoding="utf-8")


def test_parquet_is_written_on_request(export: Path, tmp_path: Path) -> None:
    """`--parquet` adds the groups in that format."""
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run("run", export, "--out", tmp_path / "out", "--parquet").returncode == 0
    table = parquet.read_table(tmp_path / "out" / "groups.parquet")
    assert sum(table.column("count").to_pylist()) == 3


@pytest.mark.skipif("GPU_LEDGER_BARE" not in os.environ, reason="only `make test` installs the program alone")
def test_the_program_runs_without_development_tools(export: Path, root: Path) -> None:
    """What is declared as needed is enough; Parquet asks for its extra."""
    command = root / os.environ["GPU_LEDGER_BARE"]
    done = subprocess.run([command, "run", export, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kernel_events"] == 3
    words: list[str | Path] = ["run", export, "--out", export.parent / "out", "--parquet"]
    done = subprocess.run([command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install pyarrow" in done.stderr


def test_a_folder_stands_for_the_captures_in_it(tmp_path: Path) -> None:
    """A folder's captures make one session, named like the folder; the reports beside them are left."""
    folder = tmp_path / "night"
    folder.mkdir()
    write_export(folder / "a.sqlite")
    write_export(folder / "b.sqlite", kernels=("gemm", "gemm"))
    _report(folder / "a.nsys-rep")
    done = run("run", folder, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kernel_events"] == 3
    assert json.loads(done.stdout)["label"] == "night"


def test_a_trace_of_pytorch_is_known_by_its_content(tmp_path: Path) -> None:
    """A file's name does not matter: gzip or not, it is looked into."""
    (tmp_path / "plain.sqlite").write_text(json.dumps(TRACE), encoding="utf-8")
    (tmp_path / "packed.json").write_bytes(gzip.compress(json.dumps(TRACE).encode()))
    for name in ("plain.sqlite", "packed.json"):
        done = run("run", tmp_path / name, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["link_status"] == {"no_nvtx_context": 0, "total": 1, "context": 1}


def test_events_are_kept_on_request_only(export: Path, tmp_path: Path) -> None:
    """The folder of segments is temporary unless `--keep-events` names a new one."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    kept = tmp_path / "kept" / "events"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    assert run("run", export, "--keep-events", kept, env=environment).returncode == 0
    assert list(temporary.iterdir()) == []
    assert [p.name for p in kept.parent.iterdir()] == ["events"]
    assert (kept / "meta.json").exists()
    assert (kept / "events-0").is_dir()
    assert "is not empty" in refusal(1, "run", export, "--keep-events", kept, env=environment)


def test_publish_writes_segments_and_a_second_time_is_harmless(export: Path, tmp_path: Path) -> None:
    """`publish` may be repeated: readers skip the rows they have seen."""
    for _ in range(2):
        done = run("publish", export, "--to", tmp_path / "events", "--partitions", "3")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("tiny: ")
    assert len(list((tmp_path / "events").glob("events-*"))) == 3
    line = refusal(2, "publish", export, "--to", tmp_path / "events", "--partitions", "4")
    assert "3" in line


def test_hostile_names_break_neither_summary_nor_files(tmp_path: Path) -> None:
    """Newlines, escapes, formulas, NUL, bad UTF-8 and a megabyte: one row each, files valid."""
    names: list[str | bytes] = [
        "new\nline",
        'quo"te,comma',
        "\x1b[31mred\x1b[0m",
        "=cmd()",
        "a" * 1_000_000,
        b"bad \xff utf8",
        "lone \ud800 surrogate",
        b"nul \x00 byte",
        "",
    ]
    path = write_export(tmp_path / "hostile.sqlite", kernels=names, ranges=names)
    out = tmp_path / "out"
    done = run("run", path, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["kernel_events"] == ledger["link_status"]["context"] == len(names)
    csv.field_size_limit(1 << 24)
    with (out / "groups.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["count"]) for row in rows) == len(names)
    for row in rows:
        assert len(json.loads(row["context"])) == len(names)


def test_a_hostile_file_name_cannot_forge_a_line(tmp_path: Path) -> None:
    """Control characters of a path are shown, not sent to the terminal."""
    line = refusal(1, "run", tmp_path / "a\nb\x1b[31m.sqlite")
    assert "a\\nb\\x1b[31m.sqlite" in line


def test_errors_are_json_on_request(tmp_path: Path) -> None:
    """`--log-format json` makes the line on stderr one for machines."""
    done = run("run", tmp_path / "nothing.sqlite", "--log-format", "json")
    assert done.returncode == 1
    record = json.loads(done.stderr)
    assert record["level"] == "error"
    assert record["exit"] == 1
    assert "nothing.sqlite" in record["where"]


def test_progress_is_shown_on_a_terminal_only(export: Path) -> None:
    """A bar is for eyes: it goes to stderr if that is a terminal, and the summary stays clean."""
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        [COMMAND, "run", export], stdout=subprocess.PIPE, stderr=secondary, text=True
    ) as process:
        os.close(secondary)
        shown = b"".join(iter(lambda: _read(primary), b""))
        said = process.communicate(timeout=60)[0]
    os.close(primary)
    assert process.returncode == 0
    assert b"\x1b[" in shown
    assert "\x1b" not in said
    assert run("run", export).stderr == ""


def _read(terminal: int) -> bytes:
    """Return what a terminal shows next, nothing once nobody writes to it any more."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


_HANDLERS = {signal.SIGINT: signal.default_int_handler}
"""What Python does about signals by itself, where not what the system does."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and a closed terminal end both processes; temporary and output folders are gone, one line is said."""
    capture = write_export(tmp_path / "big.sqlite", kernels=["gemm"] * 100_000)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    out = tmp_path / "out"
    # What a shell starts in the background, or nohup, ignores a signal, and so would all that this starts.
    ignored = signal.signal(number, signal.SIG_DFL) is signal.SIG_IGN
    with subprocess.Popen(
        [COMMAND, "run", capture, "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
    ) as process:
        signal.signal(number, signal.SIG_IGN if ignored else _HANDLERS.get(number, signal.SIG_DFL))
        deadline = time.monotonic() + 30
        while not list(temporary.glob("gpu-ledger-*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        # As a terminal does: to the whole group, child included.
        os.killpg(process.pid, number)
        said = process.communicate(timeout=30)[1]
        code = process.returncode
    assert code == 128 + number
    assert said == f"gpu-ledger: stopped by {number.name}\n"
    assert list(temporary.iterdir()) == []
    assert not out.exists()
    # All of its group ends; Python's own helper process does so a moment after us.
    deadline = time.monotonic() + 30
    while _is_alive(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_alive(group: int) -> bool:
    """Return whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_reader_is_named(tmp_path: Path) -> None:
    """If the system kills the process that reads (no memory left), the run fails and says so."""
    capture = write_export(tmp_path / "big.sqlite", kernels=["gemm"] * 100_000)
    with subprocess.Popen(
        [COMMAND, "run", capture], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 30
        readers: list[int] = []
        while not readers:
            assert time.monotonic() < deadline
            readers = _children(process.pid, "spawn_main")
        os.kill(readers[0], signal.SIGKILL)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert "was killed by SIGKILL" in said
    assert said.count("\n") == 1


def test_a_reader_killed_before_it_listened_is_named_too(export: Path, tmp_path: Path) -> None:
    """The broken connection between the two processes is no fault of ours: the reason is its end."""
    job = Job(captures=(export,), session="s", cpu_ops=False)
    folders = Folders(tmp_path / "segments", 1, tmp_path, durable=False)
    with Publisher(job, folders, lambda *_: None) as publisher:
        (child,) = multiprocessing.active_children()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(InputError, match="was killed by SIGKILL"):
            _until_ended(publisher)


def _until_ended(publisher: Publisher) -> None:
    while not publisher.ended():
        time.sleep(0.01)


def _children(pid: int, word: str) -> list[int]:
    """Return the children of a process whose command line has a word."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def test_a_run_whose_parent_was_killed_leaves_nothing_temporary(tmp_path: Path) -> None:
    """The process that reads takes the temporary folders away if the other one no longer can."""
    capture = write_export(tmp_path / "big.sqlite", kernels=["gemm"] * 100_000)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with subprocess.Popen(
        [COMMAND, "run", capture], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(temporary)}
    ) as process:
        deadline = time.monotonic() + 30
        while not list(temporary.glob("gpu-ledger-*/segments/commits/publish.lock")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
    while list(temporary.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_copy_made_of_a_capture_with_a_log_goes_with_the_run(tmp_path: Path) -> None:
    """What the process that reads put into the temporary folder is gone after a signal, too."""
    capture = write_export(tmp_path / "big.sqlite", kernels=["gemm"] * 100_000)
    capture.with_name("big.sqlite-journal").write_bytes(b"not a journal, yet SQLite must judge that")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with subprocess.Popen(
        [COMMAND, "run", capture], stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(temporary)}
    ) as process:
        deadline = time.monotonic() + 30
        while not list(temporary.rglob("big.sqlite")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert list(temporary.iterdir()) == []


def test_ctrl_c_at_any_moment_shows_no_traceback(export: Path) -> None:
    """Also while the second process starts, which gets the terminal's Ctrl-C as well."""
    for delay in (0.4, 0.55, 0.7):
        with subprocess.Popen(
            [COMMAND, "run", export],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            time.sleep(delay)
            os.killpg(process.pid, signal.SIGINT)
            said = process.communicate(timeout=30)[1]
        assert said in ("", "gpu-ledger: stopped by SIGINT\n")


@pytest.mark.parametrize("words", ["run {} --json", "run {}", "publish {} --to {}.events", "config show"])
@pytest.mark.parametrize("to", [">/dev/full", ">&-"])
def test_output_that_cannot_be_written_is_one_line(export: Path, words: str, to: str) -> None:
    """A full disk behind stdout, or none at all: exit 1, not a fault of ours, and not silence."""
    command = f"'{COMMAND}' {words.format(export, export)} {to}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-ledger: standard output: cannot be written to: ")
    assert done.stderr.count("\n") == 1


def test_closed_streams_change_nothing_in_the_files(export: Path, tmp_path: Path) -> None:
    """With stdin and stderr closed by the shell, no file of ours takes their place."""
    command = f"'{COMMAND}' run '{export}' --out '{tmp_path}/out' <&- 2>&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "out" / "ledger.json").read_text())["kernel_events"] == 3


def test_a_terminal_without_unicode_gets_escapes(export: Path) -> None:
    """Where the encoding lacks a character, the summary is still printed."""
    done = run("run", export, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 kernels" in done.stdout


def test_file_names_of_any_bytes_will_do(tmp_path: Path) -> None:
    """A capture whose name is no UTF-8 is read like any other."""
    path = write_export(tmp_path / "plain.sqlite").rename(tmp_path / os.fsdecode(b"\xff?#%41.sqlite"))
    done = run("run", path, "--json", "--out", tmp_path / os.fsdecode(b"out\xff"))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["kernel_events"] == 1


@pytest.mark.parametrize("option", ["--out", "--keep-events"])
def test_a_folder_name_that_is_too_long_is_one_line(export: Path, tmp_path: Path, option: str) -> None:
    """What the file system does not take is said before any work."""
    assert "File name too long" in refusal(1, "run", export, option, tmp_path / ("x" * 300))


def test_events_are_kept_in_a_new_folder_only(export: Path, tmp_path: Path) -> None:
    """A link, a file or the folder of the report is refused before any work, and left as it is."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("link", "file", "loop"):
        assert name in refusal(1, "run", export, "--keep-events", tmp_path / name)
    same = tmp_path / "same"
    assert "the same folder" in refusal(2, "run", export, "--keep-events", same, "--out", same)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link", "loop", "real", "tiny.sqlite"]


def test_a_publication_that_fails_makes_no_folder(tmp_path: Path) -> None:
    """Without a capture that can be read there is nothing to keep."""
    (tmp_path / "a.json").write_text("[1, 2]", encoding="utf-8")
    assert "no trace" in refusal(1, "publish", tmp_path / "a.json", "--to", tmp_path / "events")
    assert not (tmp_path / "events").exists()


def test_a_working_directory_that_is_gone_is_one_line(export: Path, tmp_path: Path) -> None:
    """Where it was deleted meanwhile, that is what is said."""
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd '{gone}'; rmdir '{gone}'; '{COMMAND}' run '{export}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "gpu-ledger: the working directory is gone; change to another one\n",
    )


def test_output_may_be_cut_off() -> None:
    """Whoever reads the output may go away (`| head`): the command ends quietly."""
    done = subprocess.run(
        ["bash", "-c", f"'{COMMAND}' config show | true"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_fault_of_our_own_is_one_line_with_the_way_to_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What no one foresaw is admitted in one line, and the traceback shown on request."""

    def fail(_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(arguments, "parse", fail)
    assert cli.main(["run", "x"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("gpu-ledger: a fault in gpu-ledger itself: ZeroDivisionError: oh (test_cli.py:")
    assert "GPU_LEDGER_TRACEBACK=1" in said
    assert said.count("\n") == 1
    monkeypatch.setenv("GPU_LEDGER_TRACEBACK", "1")
    assert cli.main(["run", "x"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_version_is_the_installed_one() -> None:
    """`--version` names program and version on stdout."""
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gpu-ledger {version('gpu-ledger')}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    """`--help` of each command goes to stdout, with examples that are themselves right."""
    done = run(name, "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "examples:" in done.stdout
    parser: Parser = make_parser()
    for line in COMMANDS[name][2]:
        words = line.partition(" > ")[0].split()
        assert parser.parse_args(words).command is not None


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_commands_and_options(shell: str) -> None:
    """The script for each shell names every command and the options of `run`."""
    done = run("completion", shell)
    assert done.returncode == 0
    for word in (*COMMANDS, "keep-events", "check"):
        assert word in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)


def test_config_init_writes_a_new_file_only(tmp_path: Path) -> None:
    """What is begun with `init` passes `check`, and is never written over."""
    path = tmp_path / "model.toml"
    assert run("config", "init", path).stdout == f"wrote {path}\n"
    assert run("config", "check", path).stdout.startswith(f"{path}: fine, digest ")
    assert "is there already" in refusal(1, "config", "init", path)
    assert run("config", "init").stdout == path.read_text(encoding="utf-8")


def test_config_show_fills_every_default_in(tmp_path: Path) -> None:
    """What `show` prints is a configuration of the same digest, as TOML or JSON."""
    path = tmp_path / "model.toml"
    path.write_text("[limits]\ngroups = 7\n", encoding="utf-8")
    shown = run("config", "show", path).stdout
    again = tmp_path / "again.toml"
    again.write_text(shown, encoding="utf-8")
    digest = shown.partition("\n")[0].removeprefix("# digest ")
    assert run("config", "check", again).stdout == f"{again}: fine, digest {digest}\n"
    assert json.loads(run("config", "show", path, "--json").stdout)["limits"]["groups"] == 7
