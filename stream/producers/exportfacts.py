"""What an Nsight Systems export says of itself: clock, host, processes, threads, devices, options.

Only rows known by name are taken: an export also holds the whole environment of the machine it
was made on, secrets included.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from schemas import facts
from schemas.columns import cut_name
from schemas.events import Clock
from schemas.types import NONE, TIME_LIMIT, Process
from stream.producers.capture import CAPTURE, FactRow, process_of, signed
from stream.producers.export import Database

PID_MASK: Final = ~0xFFFFFF
"""Takes the low 24 bits, a thread id, off a `globalTid`."""

_COLLECTED: Final = re.compile(rb"Number of CUDA events collected:\s*([0-9]{1,15})(?![0-9])")
_DOUBTS: Final = re.compile(
    rb"Not all (?:CUDA|NVTX) events might have been collected|(?:dropped|lost|discarded)"
)
_RANK: Final = re.compile(r"MPI Rank ([0-9]{1,9})")
_SYSTEM: Final = {
    "CudaDriverVersion": "driver_cuda",
    "NvGpuDriverVersion": "driver",
    "NvidiaDriverVersion": "driver",
    "GpuDriverVersion": "driver",
    "DriverVersion": "driver",
    "CudaVersion": "cuda",
    "CudaRuntimeVersion": "cuda",
    "OsVersion": "os",
    "CpuArchitecture": "cpu_architecture",
}
_DEVICE: Final = ("uuid", "chipName", "computeMajor", "computeMinor", "smCount", "totalMemory", "busLocation")


class Times(NamedTuple):
    """`shift` makes UTC of the export's times, in ns; `clock` is what they then rest on."""

    shift: int
    clock: Clock


def text_of(value: object) -> str:
    """Return a value of SQLite as text that may stand in a batch."""
    if isinstance(value, bytes):
        return cut_name(value.decode("utf-8", "backslashreplace"))
    return "" if value is None else str(value)


def export_options(database: Database) -> dict[str, str]:
    """Return what the exporter wrote of itself, by name."""
    rows = [
        row for t in ("META_DATA_EXPORT", "EXPORT_META_DATA") for row in database.rows(t, "name", "value")
    ]
    return {text_of(name): text_of(value) for name, value in rows}


def times_of(database: Database, options: dict[str, str], notes: list[str], missing: list[str]) -> Times:
    """Return how the export's times become UTC.

    They are relative to the session's start, unless exported as wall-clock times
    (`TIME_NORMALIZE`) or shifted (`TIME_SHIFT`, which is taken off again: the same capture
    exported twice has the same times).
    """
    shifted = _integer(options.get("EXPORT_PARAM_TIME_SHIFT", "0"))
    normalized = options.get("EXPORT_PARAM_TIME_NORMALIZE", "false").lower() in ("true", "1", "yes")
    if shifted:
        notes.append(f"the times were exported shifted by {shifted} ns, which was taken off again")
    zero = next(
        (z for (z,) in database.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs") if isinstance(z, int)),
        None,
    )
    if zero is None or not 0 < zero < TIME_LIMIT:
        if normalized:
            return Times(-shifted, Clock("utc", 0))
        missing.append("the session's start in UTC: times count from the start of the capture")
        return Times(-shifted, Clock())
    return Times((0 if normalized else zero) - shifted, Clock("utc", zero))


def _integer(value: str) -> int:
    number = int(value) if re.fullmatch(r"[+-]?[0-9]{1,19}", value) else 0
    return number if -TIME_LIMIT < number < TIME_LIMIT else 0


def host_of(database: Database) -> str:
    """Return the name of the machine that was traced, "" if the export does not say.

    Never the EXPORT_HOST: that is the machine the export was made on.
    """
    for name, value in database.rows("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        if text_of(name).lower() in ("hostname", "host name"):
            return text_of(value)
    return ""


def system_metadata(database: Database) -> dict[str, str]:
    """Return what is shown as metadata: GPUs, driver, CUDA, options of the capture."""
    found: dict[str, str] = {}
    gpus = [text_of(name) for (name,) in database.rows("TARGET_INFO_GPU", "name")]
    if gpus:
        found["gpu"] = ", ".join(dict.fromkeys(gpus))
    for name, value in database.rows("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        key = _SYSTEM.get(text_of(name))
        if key and value is not None:
            found.setdefault(key, text_of(value))
    if "driver_cuda" in found:
        found.setdefault("cuda", found.pop("driver_cuda"))
    options = {
        text_of(name): text_of(value) for name, value in database.rows("META_DATA_CAPTURE", "name", "value")
    }
    if options:
        found["capture_options"] = cut_name(msgspec.json.encode(options, order="sorted").decode())
    return found


def process_facts(database: Database, host: str, at: int, names: dict[int, str]) -> list[FactRow]:
    """Return the names of processes and threads, ranks, and devices.

    `at` is the time they are given, `names` the export's own strings that they use, by id.
    """
    rows = []
    for key, name, command in database.rows("PROCESSES", "globalPid", "name", "commandLine"):
        process = _process(host, key)
        if process and name is not None:
            rows.append(FactRow(process, at, NONE, facts.PROCESS_NAME, text_of(name)))
        if process and command is not None:
            rows.append(FactRow(process, at, NONE, facts.PROCESS_COMMAND, text_of(command)))
    for key, name in database.rows("ThreadNames", "globalTid", "nameId"):
        process = _process(host, key)
        if process and isinstance(name, int) and name in names:
            rows += thread_facts(process, key & ~PID_MASK, names[name], at)
    rows += _devices(database, host, at)
    return rows


def thread_facts(process: Process, thread: int, name: str, at: int) -> list[FactRow]:
    """Return a thread's name, and the rank it may give its process."""
    rows = [FactRow(process, at, thread, facts.THREAD_NAME, name)]
    rank = _RANK.fullmatch(name.strip())
    if rank:
        rows.append(FactRow(process, at, NONE, facts.PROCESS_RANK, str(int(rank[1]))))
    return rows


def _process(host: str, key: object) -> Process | None:
    process = process_of(host, key) if isinstance(key, int) else None
    return process if process and not process.is_capture else None


def _devices(database: Database, host: str, at: int) -> list[FactRow]:
    gpus: dict[object, dict[str, Any]] = {}
    for number, name, *more in database.rows("TARGET_INFO_GPU", "id", "name", *_DEVICE):
        known = {key: _plain(value) for key, value in zip(_DEVICE, more, strict=True) if value is not None}
        gpus[number] = {"name": text_of(name)} | known
    keys: dict[int, Process] = {}
    for key, pid in database.rows("PROCESSES", "globalPid", "pid"):
        process = _process(host, key)
        if process and isinstance(pid, int):
            keys[pid] = process
    rows = []
    for gpu, number, pid in database.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        if pid in keys and isinstance(number, int):
            value = {"device": number, "gpu": _plain(gpu)} | gpus.get(gpu, {})
            rows.append(FactRow(keys[pid], at, NONE, facts.DEVICE, _json(value)))
    if not rows:
        for gpu, known in gpus.items():
            rows.append(FactRow(CAPTURE, at, NONE, facts.DEVICE, _json({"device": _plain(gpu)} | known)))
    return rows


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | None) else text_of(value)


def _json(value: dict[str, Any]) -> str:
    return cut_name(msgspec.json.encode(value).decode())


def said_of_collection(database: Database) -> tuple[int | None, list[str]]:
    """Return how many CUDA events nsys says it collected, and its doubts that these are all."""
    collected: int | None = None
    doubts: dict[str, None] = {}
    for (text,) in database.rows("DIAGNOSTIC_EVENT", "text"):
        if not isinstance(text, bytes):
            continue
        found = _COLLECTED.search(text)
        if found:
            collected = (collected or 0) + int(found[1])
        elif _DOUBTS.search(text):
            doubts[text_of(text.strip())] = None
    return collected, list(doubts)


def clock_facts(database: Database, times: Times) -> list[FactRow]:
    """Return the clock readings of the capture's zero."""
    rows = []
    if times.clock.base == "utc":
        rows.append(FactRow(CAPTURE, times.clock.zero, NONE, facts.CLOCK_UTC_ZERO, str(times.clock.zero)))
    for (reading,) in database.rows("TARGET_INFO_SESSION_START_TIME", "systemClockNs"):
        if isinstance(reading, int):
            rows.append(FactRow(CAPTURE, times.clock.zero, NONE, facts.CLOCK_SYSTEM, str(reading)))
            break
    return rows


def key_of(process: Process) -> int:
    """Return a process's id as SQLite stores it: signed."""
    return signed(process.global_pid)
