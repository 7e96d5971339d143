"""The ledger: the report, key by key, and the rows of `groups.csv`.

All times are ns; instants are relative to the zero of the earliest capture, so that they can be
compared with what Nsight Systems shows. Ratios are between 0 and 1. A figure that cannot be
trusted is null and stands in `withheld`; what another null means stands at its key. Ledgers of the
same events and configuration are equal byte for byte but for `generated_at`, `seconds` and
`delivery`.

Two keys stand for several, whose names come from the configuration: each entry of `family_pids` is
a key of the document itself (`dit_pids`, ...), each of `coverage.rows` a key of `coverage`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from schemas.errors import DecodeError

SCHEMA: Final = 1
"""Version of the document; grows when a key changes its meaning, not when one is added."""

UNKNOWN_TOP: Final = 40
"""Entries of `unknown_top`."""

RECENT_TOP: Final = 10
"""Unknown kernels a role in `coverage_recent`."""

OTHER: Final = "other"
"""Kernel name of the row that holds the groups beyond `limits.groups`."""

SCOPE: Final = (
    "Diagnostic trace. Context comes from the ranges open on the launching thread when the launch "
    "began; graph kernels inherit the context of their graph launch and carry in-graph position. GPU "
    "time is trace time, not clean timing; invocation-with-context does not equal shape/counter "
    "attribution."
)

Pid = int | str
"""A pid; `<host>:<pid>` where two processes share it."""
Span = tuple[int | None, int | None]
"""[start, end) in ns; null where it is open."""


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How many kernels have a context."""

    no_nvtx_context: int
    """Kernels without context; the sum of `reasons`."""
    total: int
    """All kernels: `kernel_events`."""
    context: int
    """Kernels launched inside at least one range."""


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """A number of kernels and their GPU time."""

    kernels: int
    """How many."""
    gpu_ns: int
    """Sum of their durations in ns."""


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """How the application's clock lies to the capture's.

    An offset is the application's clock less the time in the capture.
    """

    session_systemClockNs: int | None = None  # noqa: N815 - the name users of the report know
    """The host's monotonic clock at the zero of the earliest capture; null where the source does not
    say."""
    anchor_offset_ns: int | None = None
    """Offset of the first anchor of the process of `clock.role`; if that has none, or no role is
    configured, of the earliest anchor of all (ties by process). Null without anchors."""
    anchor_count: int = 0
    """Anchors of all processes."""
    anchor_spread_ns: int | None = None
    """Largest less smallest offset of all anchors; null without."""
    used_offset_ns: int | None = None
    """The offset in use: the anchor's or the source's own, as `clock.trust` says; null where that
    is not known."""


class WindowsNs(msgspec.Struct, frozen=True, kw_only=True):
    """The spans that windows are measured against, uncut."""

    measured: list[Span]
    """Spans that count as measured. `all`: from the first event of the session to the last."""
    steady: list[Span]
    """Spans found steady."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the kernels that has a context; row counters stand beside these keys."""

    invocations_with_context: float | None
    """Kernels with context / kernels."""
    steady_gpu_time_with_context: float | None
    """GPU time with context / GPU time, over the kernels of steady windows."""
    steady_gpu_ns_total: int | None
    """GPU time of the kernels of steady windows, in ns."""
    rows: dict[str, dict[str, int] | None] = {}
    """The counters of the configuration's `rows`, each under its own name: key -> how many ranges
    or kernels started in measured windows. Null where withheld."""


class UnknownKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that often has no context."""

    role: str
    """Role of the process it ran for."""
    name: str
    """Name of the kernel."""
    count: int
    """How often it ran without context."""


class RoleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one role."""

    kernels: int
    """Kernels of its processes."""
    gpu_ns: int
    """Their GPU time in ns."""
    context: Amount
    """Those with a context."""
    reasons: dict[str, Amount]
    """Those without, by reason."""
    invocations_with_context: float | None
    """Kernels with context / kernels. Null where it has none, or where rows are missing."""
    gpu_time_with_context: float | None
    """GPU time with context / GPU time. Null where it has none, or where rows are missing."""


class NameCount(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel and how often it ran."""

    name: str
    """Name of the kernel."""
    count: int
    """How often it ran without context."""


class RecentRole(msgspec.Struct, frozen=True, kw_only=True):
    """One role in the last closed windows."""

    figures: RoleFigures
    """Its figures in them."""
    unknown_top: list[NameCount]
    """Its kernels without context in them, by count, then name; at most 10."""


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """The last closed windows: a cumulative figure would hide a drop."""

    windows: int
    """How many windows these are: `limits.recent`, fewer at the start."""
    span_ns: Span | None
    """From the start of the first to the end of the last of them; null without any."""
    per_role: dict[str, RecentRole]
    """The figures of each role that has kernels in them."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One window that holds kernels."""

    span_ns: Span
    """Where it begins and ends. Null: before the first cut, or after the last."""
    closed: bool
    """Whether all its kernels are in."""
    measured: bool
    """Whether it lies inside a measured span."""
    steady: bool
    """Whether it lies inside a steady span; false as long as that is not decided."""
    per_role: dict[str, RoleFigures]
    """The figures of each role that has kernels in it."""


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """The replays of one CUDA graph in one process."""

    host: str
    """Host of the process; empty where the source does not say."""
    pid: int
    """Its pid."""
    role: str
    """Its role."""
    graph_id: int | None
    """The instantiated graph, null where the source does not say."""
    positions: str | None
    """What positions of its kernels are: `node` numbers of the graph, or their `order` within a
    replay. Null for opaque launches."""
    replays: int
    """Graph launches with at least one kernel, or opaque ones."""
    kernels: int
    """Kernels of these; 0 for opaque launches, whose kernels the trace does not show."""
    gpu_ns: int | None
    """GPU time of opaque launches in ns, null for others: theirs is in their kernels."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory copies and sets of one kind in one process; never counted as kernels."""

    host: str
    """Host of the process; empty where the source does not say."""
    pid: int
    """Its pid."""
    role: str
    """Its role."""
    operation: str
    """What was done, such as `memcpy HtoD`."""
    count: int
    """How often."""
    gpu_ns: int
    """How long in all, in ns."""
    bytes: int
    """How much in all."""
    with_context: int
    """How many of them were launched inside a range."""


class MissingRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one kind of events that were published and never read."""

    capture: str
    """Digest of the capture."""
    host: str
    """Host of the process; empty where the source does not say."""
    pid: int
    """Its pid; 0: facts of the capture itself."""
    kind: str
    """Kind of events."""
    intervals: list[tuple[int, int]]
    """[low, high) of row numbers."""


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that came after the watermark that promised there would be no more."""

    kernels: int
    """Kernels; linked by the same rules and added to their window."""
    launches: int
    """Launches; they serve kernels that are not decided yet."""
    ranges: int
    """Range openings and closings."""
    memory: int
    """Memory copies and sets."""
    boundaries: int
    """Window boundaries; too late to be any."""


class OddRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are not as they should be, and were counted all the same."""

    negative_durations: int
    """Kernels that end before they start: counted with 0 ns."""
    zero_durations: int
    """Kernels that end as they start."""
    launched_after_start: int
    """Kernels that start before the launch they are linked to: the GPU's clock is off."""
    second_kernels: int
    """Kernels that found the launch of their correlation id used up: `launch_not_captured`."""
    crossing_ranges: int
    """Ranges that ended after a range they began in."""
    unmatched_closings: int
    """Range closings whose opening is not known."""
    unknown_kinds: int
    """Batches of a kind this program does not know."""


class ClockOffset(msgspec.Struct, frozen=True, kw_only=True):
    """How far a GPU's clock is off, at least when negative."""

    host: str
    """Host of the process; empty where the source does not say."""
    pid: int
    """Its pid."""
    device: int | None
    """The GPU."""
    offset_ns: int
    """Smallest (kernel start - launch start) in ns."""


class Overflow(msgspec.Struct, frozen=True, kw_only=True):
    """A process with more groups than `limits.groups`."""

    host: str
    """Host of the process; empty where the source does not say."""
    pid: int
    """Its pid."""
    kernels: int
    """Kernels in its row `other`."""
    gpu_ns: int
    """Their GPU time in ns."""


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """How far one process of one capture has come."""

    capture: str
    """Digest of the capture."""
    host: str
    """Host of the process; empty where the source does not say."""
    pid: int
    """Its pid."""
    watermark_ns: int | None
    """Every event before this time is in. Null: all are, or none was promised yet."""
    ended: bool
    """Whether it has ended."""
    pending: int
    """Rows taken in and not decided yet."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What one capture is and says of itself."""

    capture: str
    """Digest of its content."""
    file: str
    """Name of the file, without its path."""
    format: str
    """Format and version."""
    base: str
    """What its times rest on: `utc`, or `none` where it does not say."""
    zero_ns: int
    """Its zero in UTC ns; 0 without UTC. The one absolute time in the ledger."""
    uncertainty_ns: int | None
    """How far off that may be; null: unknown."""
    span_ns: Span | None
    """From its first event to the end of its last; null without events."""
    missing: list[str]
    """What it lacks."""
    notes: list[str]
    """What else a reader should know."""
    counts: dict[str, int]
    """Rows read, used and left out; `collected` is what the source's own diagnostics say."""
    export_complete: bool | None
    """Whether as many events were exported as the source says it collected: proof of a whole
    export, not of a whole capture. Null where it does not say."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Boundaries that nobody waited for any longer: none of that time count, whenever they came."""

    host: str | None
    """Host of the process whose boundaries they are; null: none had come."""
    pid: int | None
    """Its pid; null: none had come."""
    capture: str | None
    """Digest of its capture; null: none had come."""
    since_ns: int | None
    """How far it had come, relative to the earliest capture's zero; null: nowhere."""
    until_ns: int
    """From here on its boundaries count again."""
    reason: str
    """`max_wait`: it was silent for that long; `pending`: too many rows waited for it."""


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """A process that is not heard of."""

    host: str
    """Host of the process; empty where the source does not say."""
    pid: int
    """Its pid."""
    capture: str
    """Digest of its capture."""
    watermark_ns: int | None
    """How far it has come, relative to the earliest capture's zero; null: nowhere."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """How good the events were that the figures are made of."""

    missing_rows: int
    """Rows that were published and never read."""
    missing: list[MissingRows]
    """Which ones."""
    late: Late
    """Rows that came late."""
    odd: OddRows
    """Rows that were odd."""
    after_end: int
    """Rows that came after the end of their session: too late to be taken in."""
    unended_captures: int
    """Captures of a process that had not ended when their session was ended."""
    pending: int
    """Rows taken in and not decided yet; 0 in a final ledger."""
    clock_offsets: list[ClockOffset]
    """Smallest (kernel start - launch start) of each process and device."""
    overflow: list[Overflow]
    """Processes with more groups than are counted apart."""
    blind_ns: int
    """Time between the first and the last event of the session that no capture covers."""
    blind: list[Span]
    """Which times."""
    cuts: list[Cut]
    """Boundaries that were given up on while events flowed; none of `run`."""
    silent: list[Silent]
    """Processes that have not been heard of for too long, and have not ended; none of `run`."""
    watermarks: list[Watermark]
    """How far each process has come."""
    sources: list[Source]
    """What each capture says of itself."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What happened on the way here; the one part that depends on it."""

    repeated_rows: int
    """Rows that came again and were skipped."""
    dead_letters: int
    """Records that could not be read."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one session."""

    label: str
    """Name of the session."""
    run: str
    """`--run`, by default the label."""
    generated_at: str | None = None
    """When this was written, as `2026-09-10T16:08:19+0800`."""
    kernel_events: int
    """Kernels decided: with context and without."""
    link_status: LinkStatus
    """How many have a context."""
    groups: int
    """Groups with at least one kernel: (process, device, context, kernel, graph, position). The
    row `other` is none."""
    roles: dict[str, str]
    """pid -> role of each process that has events."""
    family_pids: dict[str, list[Pid]]
    """Each entry is a key of its own, `<family>_pids`: the pids of the processes whose role is
    `<family>_rank...` or `<family>_unknown_rank`."""
    clock: Clock
    """How the application's clock lies to the capture's."""
    windows_ns: WindowsNs
    """Measured and steady spans."""
    coverage: Coverage
    """The part of the kernels that has a context, and the row counters."""
    unknown_top: list[UnknownKernel]
    """The 40 (role, kernel) that most often had no context; ties by role, then name."""
    seconds: float | None = None
    """How long it took to make."""
    scope: str = SCOPE
    """What these figures are and are not."""
    schema: int = SCHEMA
    """Version of this document."""
    final: bool
    """Whether all captures have ended and everything is in."""
    config_digest: str
    """Digest of the configuration."""
    reasons: dict[str, Amount]
    """Kernels without context by reason: `launch_not_captured`, `launch_outside_ranges` (no range
    is open, but one of that thread had started), `thread_without_ranges`."""
    per_role: dict[str, RoleFigures]
    """The figures of each role."""
    coverage_recent: Recent
    """The figures of the last closed windows."""
    windows: list[Window]
    """The last windows that hold kernels, `limits.windows` of them, in order of time."""
    graphs: list[Graph]
    """CUDA graphs and their replays."""
    memory: list[Memory]
    """Memory copies and sets."""
    metadata: dict[str, Any]
    """What the captures say of the run: key -> list of the different values (`gpu`, `driver`,
    `cuda`, `capture_options`, `model_commit`, ... and `devices`)."""
    withheld: dict[str, list[str]]
    """Path of a figure that is null -> why."""
    quality: Quality
    """How good the events were."""
    delivery: Delivery
    """What happened on the way; differs between runs."""


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `groups.csv`: the kernels of one group in steady, or in other windows.

    A group is (process, device, rewritten context, kernel, graph, position). In CSV a text that a
    spreadsheet could take for a formula (it begins with `=`, `+`, `-`, `@`, a tab or a carriage
    return), or that begins with `'`, has a `'` before it: take one off to have the name back. NUL
    stands as U+2400. `groups.parquet` holds names as they are.
    """

    host: str
    """Host of the process; empty where the source does not say."""
    pid: int
    """Its pid."""
    device: int | None
    """The GPU; empty in the row `other`."""
    role: str
    """Role of the process."""
    context: str
    """Ranges open at the launch, outermost first, as a JSON list; `[]`: none."""
    kernel: str
    """Name of the kernel; `other` without a device: all groups beyond `limits.groups`."""
    graph_id: int | None
    """The instantiated CUDA graph it is of; empty: none, or not known."""
    position: int | None
    """Its position within the graph; empty: none."""
    steady: bool
    """Whether these are the kernels in steady windows."""
    count: int
    """How many."""
    total_ns: int
    """Sum of their durations."""
    min_ns: int
    """The shortest."""
    max_ns: int
    """The longest."""
    p50_ns: int
    """The median, within 0.8 %."""
    p99_ns: int
    """The 99th percentile, within 0.8 %."""


GROUP_COLUMNS: Final = GroupRow.__struct_fields__


def encode_ledger(ledger: Ledger) -> bytes:
    """Return the document as indented JSON: the same ledger, the same bytes."""
    document: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(ledger).items():
        if name == "family_pids":
            document.update(sorted(ledger.family_pids.items()))
        elif name == "coverage":
            fixed = msgspec.structs.asdict(ledger.coverage)
            rows = fixed.pop("rows")
            document[name] = fixed | {key: rows[key] for key in sorted(rows) if key not in fixed}
        else:
            document[name] = value
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def decode_ledger(data: bytes) -> Ledger:
    """Return the ledger in a document.

    Raises:
        DecodeError: the bytes are not a ledger, or one of a newer version.

    """
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
        if document.get("schema", 0) > SCHEMA:
            raise DecodeError(f"ledger has schema {document['schema']}, this program reads {SCHEMA}")
        families = {key: document.pop(key) for key in list(document) if _is_family(key)}
        coverage = document.get("coverage", {})
        fixed = Coverage.__struct_fields__
        rows = {key: coverage.pop(key) for key in list(coverage) if key not in fixed}
        document["coverage"] = coverage | {"rows": rows}
        return msgspec.convert(document | {"family_pids": families}, Ledger)
    except (msgspec.DecodeError, msgspec.ValidationError, AttributeError, TypeError) as error:
        raise DecodeError(f"ledger: {error}") from None


def _is_family(key: str) -> bool:
    return key.endswith("_pids") and key not in Ledger.__struct_fields__
