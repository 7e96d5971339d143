"""What types cannot say of a configuration.

Patterns that compile, templates whose fields exist, roles that are known in time, keys that mean
something together.
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from schemas.config import Config, Context, RoleRule, Spans, duration_ns
from schemas.errors import ConfigError
from schemas.types import TIME_LIMIT

PROCESS_FIELDS: Final = ("pid", "rank", "role", "host")
"""Fields of the key of a row counter that stand for the process, never for a capture."""

COVERAGE_KEYS: Final = (
    "invocations_with_context",
    "steady_gpu_time_with_context",
    "steady_gpu_ns_total",
)
"""Keys of the ledger's `coverage` that no row counter may take."""

_DURATIONS: Final = (
    # key, the least it may be in ns
    ("windows.length", 1),
    ("windows.max_wait", 1),
    ("windows.measured.slack", 0),
    ("windows.steady.slack", 0),
    ("limits.launch_age", 1),
    ("limits.launch_wait", 0),
)
_LONGEST: Final = TIME_LIMIT // 2
"""Of a duration: 73 years, so that a time less a duration stays within 64 bits."""

_APPLIES: Final[Mapping[str, frozenset[str]]] = {
    # What besides `by` means something for each way of making spans.
    "all": frozenset(),
    "none": frozenset(),
    "ranges": frozenset({"name", "role", "until", "warmup", "tolerance", "history"}),
    "marks": frozenset({"name", "role", "end", "slack", "warmup", "tolerance", "history"}),
    "times": frozenset({"times"}),
    "file": frozenset({"times", "file"}),
}
_ONLY_STEADY: Final = frozenset({"warmup", "tolerance", "history"})
_IMPLICIT_ROLE: Final = r"rank[0-9]+|pid_.+"
_FIELD: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def template_fields(template: str) -> tuple[str, ...]:
    """Return the names in braces in a template; ValueError if some brace belongs to none."""
    if "{" in (rest := _FIELD.sub("", template)) or "}" in rest:
        raise ValueError(f"a brace in {template!r} belongs to no {{field}}")
    return tuple(_FIELD.findall(template))


def check_config(config: Config, where: str = "configuration") -> None:
    """Check what types alone cannot.

    Raises:
        ConfigError: naming `where` and the key.

    """
    for key, problem, hint in _problems(config):
        raise ConfigError(problem, where=f"{where}: {key}", hint=hint)


Problem = tuple[str, str, str]
"""The key that is wrong, what is wrong with it and what to do (may be empty)."""


def _problems(config: Config) -> Iterator[Problem]:
    yield from _duration_problems(config)
    yield from _pattern_problems(config)
    # From here on every pattern compiles.
    yield from _role_problems(config)
    yield from _context_problems(config.context)
    yield from _spans_problems(config, "measured", config.windows.measured)
    yield from _spans_problems(config, "steady", config.windows.steady)
    yield from _rows_problems(config)
    yield from _clock_problems(config)


def _duration_problems(config: Config) -> Iterator[Problem]:
    for key, least in _DURATIONS:
        value: object = config
        for name in key.split("."):
            value = getattr(value, name)
        if not least <= (ns := duration_ns(str(value))) <= _LONGEST:
            yield key, f"{value} is too {'short' if ns < least else 'long'}", ""


def _patterns(config: Config) -> Iterator[tuple[str, str]]:
    """Yield every key that holds a regular expression, with it."""
    for i, rule in enumerate(config.roles.rules):
        for name, pattern in role_patterns(rule).items():
            yield f"roles.rules[{i}].{name}", pattern
    for i, rewrite in enumerate(config.context.rewrites):
        yield f"context.rewrites[{i}].match", rewrite.match
    for purpose in ("measured", "steady"):
        spans: Spans = getattr(config.windows, purpose)
        yield f"windows.{purpose}.name", spans.name
        yield f"windows.{purpose}.end", spans.end
    for i, rows in enumerate(config.rows):
        yield f"rows[{i}].match", rows.match
        yield f"rows[{i}].context", rows.context
        yield f"rows[{i}].role", rows.role
    yield "clock.mark", config.clock.mark


def role_patterns(rule: RoleRule) -> dict[str, str]:
    """Return the patterns of a rule that are given, by key."""
    names = ("process", "command", "thread", "range", "rank", "pid")
    return {name: pattern for name in names if (pattern := getattr(rule, name))}


def _pattern_problems(config: Config) -> Iterator[Problem]:
    for key, pattern in _patterns(config):
        try:
            with warnings.catch_warnings():
                # What Python may do differently one day is no concern of who reads a ledger today.
                warnings.simplefilter("ignore")
                re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            yield key, f"not a regular expression: {error}", "write it in the syntax of Python's re"


def _captures(*patterns: str) -> set[str]:
    return {name for pattern in patterns for name in re.compile(pattern).groupindex}


def _template_problems(key: str, template: str, known: set[str]) -> Iterator[Problem]:
    try:
        fields = template_fields(template)
    except ValueError as error:
        yield key, str(error), ""
        return
    for field in fields:
        if field not in known:
            yield key, f"no field {{{field}}} here", f"known: {', '.join(sorted(known))}"


def _role_problems(config: Config) -> Iterator[Problem]:
    for i, rule in enumerate(config.roles.rules):
        key = f"roles.rules[{i}].role"
        if not rule.role:
            yield key, "a role needs a name", ""
        known = _captures(*role_patterns(rule).values()) | {"rank", "pid", "host"}
        yield from _template_problems(key, rule.role, known)
    listed: set[str] = set()
    for i, role in enumerate(config.roles.expect):
        key = f"roles.expect[{i}]"
        if role in listed:
            yield key, f"{role!r} is listed twice", ""
        listed.add(role)
        if not _makers(config.roles.rules, role) and not re.fullmatch(_IMPLICIT_ROLE, role):
            yield key, f"no rule makes the role {role!r}", _made_by(config.roles.rules)


def _makers(rules: Sequence[RoleRule], role: str) -> list[int]:
    """Return the numbers of the rules whose template may come to be `role`."""
    found = []
    for i, rule in enumerate(rules):
        parts = [re.escape(part) for part in _FIELD.split(rule.role)[::2]]
        before, marker, _ = rule.role.partition("{rank}")
        likely = [".*".join(parts)]
        if marker:
            unknown = _FIELD.sub("\0", before).removesuffix("rank").removesuffix("_")
            likely.append(".*".join(re.escape(p) for p in unknown.split("\0")) + "_?unknown_rank")
        if any(re.fullmatch(pattern, role, re.DOTALL) for pattern in likely):
            found.append(i)
    return found


def _made_by(rules: Sequence[RoleRule]) -> str:
    names = ", ".join(rule.role for rule in rules)
    return f"the rules make {names}" if names else "there are no rules: add some under [[roles.rules]]"


def _source_role_problems(config: Config, key: str, role: str) -> Iterator[Problem]:
    """Look whether `role` follows from what is said of a process first, before any range."""
    rules = config.roles.rules
    makers = _makers(rules, role)
    implicit = re.fullmatch(_IMPLICIT_ROLE, role) is not None
    if not makers and not implicit:
        yield key, f"no rule makes the role {role!r}", _made_by(rules)
        return
    last = len(rules) - 1 if implicit else makers[-1]
    for i, rule in enumerate(rules[: last + 1]):
        if rule.range:
            yield (
                key,
                f"the role {role!r} must be known from the first, yet roles.rules[{i}] asks for range names",
                "tell it by process, command, thread, rank or pid, in a rule before those with ranges",
            )
            return


def _context_problems(context: Context) -> Iterator[Problem]:
    for i, domain in enumerate(context.domains):
        if domain in context.exclude_domains:
            yield f"context.domains[{i}]", f"{domain!r} is in exclude_domains too", ""
    for i, rewrite in enumerate(context.rewrites):
        key = f"context.rewrites[{i}]"
        try:
            re.compile(rewrite.match).sub(rewrite.replace, "")
        except (re.error, IndexError) as error:
            yield f"{key}.replace", f"not a replacement: {error}", r"write \1 or \g<name> for a group"
        yield from _reserved_problems(f"{key}.match", rewrite.match)


def _reserved_problems(key: str, *patterns: str) -> Iterator[Problem]:
    for name in sorted(_captures(*patterns).intersection(PROCESS_FIELDS)):
        yield key, f"the capture {name!r} would hide the process's own {name}", "give it another name"


def _spans_problems(config: Config, purpose: str, spans: Spans) -> Iterator[Problem]:
    key = f"windows.{purpose}"
    for field in msgspec.structs.fields(Spans):
        if field.name == "by" or getattr(spans, field.name) == field.default:
            continue
        if field.name not in _APPLIES[spans.by]:
            yield f"{key}.{field.name}", f'means nothing with by = "{spans.by}"', "take it out"
        if purpose == "measured" and field.name in _ONLY_STEADY:
            yield f"{key}.{field.name}", "means something for windows.steady only", "take it out"
    if not math.isfinite(spans.tolerance):
        yield f"{key}.tolerance", "must be a finite number", ""
    if spans.by in ("ranges", "marks"):
        for name in ("name", "role"):
            if not getattr(spans, name):
                yield f"{key}.{name}", f'missing, needed with by = "{spans.by}"', ""
        yield from _source_role_problems(config, f"{key}.role", spans.role)
    if spans.by in ("times", "file"):
        yield from _times_problems(key, spans)
    application = spans.by == "file" or (spans.by == "marks" and "ns" in _captures(spans.name, spans.end))
    if application and not config.clock.role:
        yield (
            "clock.role",
            f"missing, needed since windows.{purpose} are in the application's clock",
            "name the role whose clock marks tie that clock to the capture's",
        )


def _times_problems(key: str, spans: Spans) -> Iterator[Problem]:
    if not spans.times:
        missing = "times" if spans.by == "times" else "file"
        yield f"{key}.{missing}", f'missing or without spans, needed with by = "{spans.by}"', ""
    for i, (start, end) in enumerate(spans.times):
        if not -TIME_LIMIT < start < end < TIME_LIMIT:
            yield f"{key}.times[{i}]", f"[{start}, {end}] is not a span of time", ""
    for i, (one, other) in enumerate(itertools.pairwise(spans.times), start=1):
        if other[0] < one[1]:
            yield f"{key}.times[{i}]", "begins before the span before it ends", "sort them and join overlaps"


def _rows_problems(config: Config) -> Iterator[Problem]:
    rewrites = _captures(*(rewrite.match for rewrite in config.context.rewrites))
    names: set[str] = set()
    for i, rows in enumerate(config.rows):
        key = f"rows[{i}]"
        if not rows.name:
            yield f"{key}.name", "a counter needs a name", ""
        if rows.name in names:
            yield f"{key}.name", f"{rows.name!r} is the name of another counter", ""
        if rows.name in COVERAGE_KEYS:
            yield f"{key}.name", f"{rows.name!r} is a figure of the ledger", "give it another name"
        names.add(rows.name)
        yield from _reserved_problems(f"{key}.match", rows.match)
        yield from _reserved_problems(f"{key}.context", rows.context)
        known = rewrites | _captures(rows.match, rows.context) | set(PROCESS_FIELDS)
        yield from _template_problems(f"{key}.key", rows.key, known)


def _clock_problems(config: Config) -> Iterator[Problem]:
    if "ns" not in _captures(config.clock.mark):
        yield "clock.mark", "has no named capture `ns`", "write (?P<ns>-?[0-9]+) where the reading stands"
    if config.clock.role:
        yield from _source_role_problems(config, "clock.role", config.clock.role)
