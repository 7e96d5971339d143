"""The configuration: every key, its default and its meaning. All durations end up in ns.

Only what decides figures is here; where to read and write is said on the command line. Two
configurations with the same `digest` make the same ledger of the same events.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

import msgspec

DURATION_PATTERN: Final = r"^(0|[0-9]{1,30}(\.[0-9]{1,30})?(ns|us|ms|s|m|h))\Z"
Duration = Annotated[str, msgspec.Meta(pattern=DURATION_PATTERN)]
"""A number and a unit, such as "250ms", "10s" or "1.5h"."""

_UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def duration_ns(text: str) -> int:
    """Return a `Duration` in ns, exactly."""
    if text == "0":
        return 0
    number = text.rstrip("nsumh")
    whole, _, fraction = number.partition(".")
    scale = _UNITS[text[len(number) :]]
    return int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all tables: closed, so that a misspelt key is an error."""


class RoleRule(Table, frozen=True):
    """One way to tell what a process is; all patterns given must match, the first rule wins.

    Patterns are regular expressions searched for in the text; their named captures, and `rank`,
    `pid` and `host`, may stand in `role`. A `{rank}` that is not known makes `<family>_unknown_rank`.
    """

    role: str
    """Template of the role, such as "dit_rank{rank}"."""
    process: str = ""
    """Pattern for the process's name."""
    command: str = ""
    """Pattern for its command line."""
    thread: str = ""
    """Pattern for the name of any of its threads."""
    range: str = ""
    """Pattern for the name of any of its ranges."""
    rank: str = ""
    """Pattern for its rank, where the source says one."""
    pid: str = ""
    """Pattern for its pid, in decimal."""


class Roles(Table, frozen=True):
    """What each process is called."""

    rules: tuple[RoleRule, ...] = ()
    """Tried in order. Without a match: `rank<n>` where the source says so, else `pid_<n>`."""
    expect: tuple[str, ...] = ()
    """Roles that must be there with kernels; figures are withheld where one is not."""


class Rewrite(Table, frozen=True):
    """One replacement in range names, so that names that never repeat share a group."""

    match: str
    """Regular expression. Its named captures become fields of the context."""
    replace: str = r"\g<0>"
    """What stands in its place, in the syntax of Python's `re`. Default: the name as it is."""


class Context(Table, frozen=True):
    """How the ranges open at a launch become its context."""

    depth: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 64
    """At most this many ranges, the outermost."""
    domains: tuple[str, ...] = ()
    """Names of the NVTX domains whose ranges count ("" is the default one); none given: all."""
    exclude_domains: tuple[str, ...] = ()
    """Names of the NVTX domains whose ranges do not count."""
    process_ranges: bool = False
    """Whether start/end ranges, which belong to the process, stand before the thread's own."""
    default_rewrites: bool = True
    """Whether the built-in rules come first: they take off `, op_id = 1`, `, seq = 1`, `#1`."""
    rewrites: tuple[Rewrite, ...] = ()
    """Applied in order, each to the outcome of the one before."""


class Spans(Table, frozen=True):
    """Where the spans of time come from that are of this purpose."""

    by: Literal["all", "none", "ranges", "times", "file", "marks"]
    """`all` of the time, `none` of it, `ranges` or `marks` of a role, `times` in UTC or a `file`
    of times in the application's clock."""
    name: str = ""
    """Pattern for the name of the ranges, or of the marks that open a span, or of the windows the
    application announced with begin and length. A capture `ns` is a time in the application's clock
    and stands in place of the mark's own."""
    end: str = ""
    """Pattern for the marks that close the span opened last; without one it lasts to the next
    opening."""
    role: str = ""
    """The role of the process the ranges or marks are of. It must be known before any range: a rule
    for it may ask for process, command, thread, rank or pid, not for `range`."""
    until: Literal["end", "next"] = "end"
    """Whether a range's span ends with the range, or where the next range opens."""
    times: tuple[tuple[int, int], ...] = ()
    """[start, end) in ns: UTC with `times`, the application's clock with `file`."""
    file: str = ""
    """JSON file with a list of [start, end] in ns of the application's clock."""
    slack: Duration = "1s"
    """How far back a mark's `ns` may point; one that points further back is too late, and counted."""
    warmup: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0
    """By ranges or marks: so many spans at the beginning are never steady."""
    tolerance: Annotated[float, msgspec.Meta(ge=0)] = 0.1
    """By ranges or marks: a steady span's length differs at most this part from the median."""
    history: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 5
    """By ranges or marks: how many spans before it the median is of (fewer at the start; the very
    first has none to be compared with and is never steady)."""


class Windows(Table, frozen=True):
    """How the timeline is cut."""

    length: Duration = "10s"
    """Where no spans by ranges, marks, times or file cut it: at absolute multiples of this."""
    measured: Spans = Spans(by="all")
    """What counts as measured: the time that the counters of `rows` are over. Coverage and groups are
    over all of the capture."""
    steady: Spans = Spans(by="none")
    """What counts as steady: the time that the ledger's `coverage.steady_...` are over, and that
    `groups.csv` counts apart."""
    max_wait: Duration = "60s"
    """Live: how long to wait for a source of boundaries that is silent."""


class Rows(Table, frozen=True):
    """A counter of ranges or kernels that start in measured windows."""

    name: str
    """Its key in the ledger's `coverage`."""
    count: Literal["ranges", "kernels"]
    """What is counted."""
    match: str
    """Pattern for the name of the range (as captured) or kernel."""
    context: str = ""
    """Pattern that some range open when it starts, itself included, must match as well (by its name
    as captured); for a kernel, some range of its context."""
    role: str = ""
    """Pattern that its role must match as a whole."""
    key: str = "{pid}"
    """Template of the key a count stands under: `pid`, `rank`, `role`, `host`, fields of the
    context and named captures of `match` and `context`."""


class ClockConfig(Table, frozen=True):
    """How the application's clock is tied to the capture's."""

    mark: str = r"clock_anchor:(?P<ns>-?[0-9]+)"
    """Pattern for marks that carry it; the capture `ns` is its reading."""
    role: str = ""
    """The role whose first anchor is used."""
    trust: Literal["anchor", "system"] = "anchor"
    """Whether `used_offset_ns` is the anchor's or the source's own reading of the clock."""


class Limits(Table, frozen=True):
    """Bounds on time and memory."""

    groups: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 65536
    """Groups a process; later ones are counted together under `other`."""
    windows: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 64
    """How many of the last windows the ledger lists."""
    recent: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 6
    """How many of the last closed windows `coverage_recent` is over."""
    launch_age: Duration = "60s"
    """How long before a kernel's start its launch may lie."""
    launch_wait: Duration = "5s"
    """How long after a kernel's start its launch may lie (GPU clocks that run behind)."""
    pending: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 4_000_000
    """Live: rows a linker may hold undecided before it gives up on what it waits for."""


class Config(Table, frozen=True):
    """The whole configuration."""

    roles: Roles = Roles()
    context: Context = Context()
    windows: Windows = Windows()
    rows: tuple[Rows, ...] = ()
    clock: ClockConfig = ClockConfig()
    limits: Limits = Limits()

    @property
    def digest(self) -> str:
        """Digest of everything that decides figures, defaults included; 16 hex digits."""
        data = msgspec.json.encode(self, order="deterministic")
        return hashlib.blake2b(data, digest_size=8).hexdigest()
