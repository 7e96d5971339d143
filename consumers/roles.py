"""What each process is called: rules over facts, pure and independent of their order.

The linker asks for the role of a process whose ranges or anchors matter to everybody (from its
facts alone); the sink asks for all of them, from all facts known.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from schemas import facts as keys
from schemas.config import RoleRule, Roles
from schemas.deltas import Fact, RoleMatch
from schemas.types import Process

UNKNOWN: Final = "unknown"
"""Stands in a role or a row key for a field that has no value."""

_FIELD: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_RANK: Final = re.compile(r"(?:^|_)rank([0-9]+)$")
_FAMILY: Final = re.compile(r"(.+?)_(?:unknown_)?rank(?![A-Za-z])", re.DOTALL)


def role_of(
    rules: Roles,
    process: Process,
    facts: Sequence[Fact],
    matches: Sequence[RoleMatch] = (),
    *,
    shown: str = "",
) -> str:
    """Return the role of one process.

    `facts` are those of the process and its threads; `matches` say which rules' `range` patterns
    some range of it matched. Their order does not matter: where several texts match a pattern,
    the smallest counts. `shown` is how its pid is shown (see `shown_pids`).
    """
    return name_process(rules, process, facts, matches, shown=shown).role


class Named(NamedTuple):
    """A process's role, and its rank as far as the rule, the source or the role says one."""

    role: str
    rank: str | None


def name_process(
    rules: Roles,
    process: Process,
    facts: Sequence[Fact],
    matches: Sequence[RoleMatch] = (),
    *,
    shown: str = "",
) -> Named:
    """Return the role of one process (see `role_of`) and its rank."""
    texts = _texts(facts)
    rank = rank_of(facts)
    base = {"pid": str(process.pid), "host": process.host}
    if rank is not None:
        base["rank"] = str(rank)
    for number, rule in enumerate(rules.rules):
        captured = _captures(number, rule, process, texts, matches)
        if captured is not None:
            fields = base | captured
            role = _named(rule.role, fields)
            if "rank" in fields:
                return Named(role, fields["rank"])
            written = _RANK.search(role)
            return Named(role, written[1] if written else None)
    if rank is not None:
        return Named(f"rank{rank}", str(rank))
    return Named(f"pid_{shown or process.pid}", None)


def rank_of(facts: Iterable[Fact]) -> int | None:
    """Return the rank the source gives the process, the smallest if it gives several."""
    ranks = [int(f.value) for f in facts if f.key == keys.PROCESS_RANK and _is_rank(f.value)]
    return min(ranks, default=None)


def family_of(role: str) -> str | None:
    """Return what precedes `_rank` or `_unknown_rank` in a role, None if nothing does."""
    match = _FAMILY.match(role)
    return match[1] if match else None


def shown_pids(processes: Iterable[Process]) -> dict[Process, str]:
    """Return how each pid is shown: in decimal, or as `<host>:<pid>` where two processes share it.

    Where that is shared too (virtual machines of one host), the id's hardware and vm numbers
    follow as `@<hardware>.<vm>`.
    """
    listed = sorted(set(processes))
    pids = Counter(p.pid for p in listed)
    hosts = Counter((p.host, p.pid) for p in listed)
    shown = {}
    for p in listed:
        text = str(p.pid)
        if pids[p.pid] > 1:
            text = f"{p.host}:{p.pid}"
        if hosts[p.host, p.pid] > 1:
            text += f"@{p.global_pid >> 56 & 0xFF}.{p.global_pid >> 48 & 0xFF}"
        shown[p] = text
    return shown


def fill(template: str, fields: Mapping[str, str]) -> str:
    """Return `template` with each `{field}` replaced by its value, "unknown" where it has none."""
    return _FIELD.sub(lambda match: fields.get(match[1], UNKNOWN), template)


def _named(template: str, fields: Mapping[str, str]) -> str:
    before, marker, _ = template.partition("{rank}")
    if marker and "rank" not in fields:
        family = fill(before, fields).removesuffix("rank").removesuffix("_")
        return f"{family}_unknown_rank" if family else "unknown_rank"
    return fill(template, fields)


def _captures(
    number: int,
    rule: RoleRule,
    process: Process,
    texts: Mapping[str, Sequence[str]],
    matches: Sequence[RoleMatch],
) -> dict[str, str] | None:
    """Return the named captures of a rule, None if one of its patterns does not match."""
    patterns = (
        (rule.process, texts[keys.PROCESS_NAME]),
        (rule.command, texts[keys.PROCESS_COMMAND]),
        (rule.thread, texts[keys.THREAD_NAME]),
        (rule.rank, texts[keys.PROCESS_RANK]),
        (rule.pid, (str(process.pid),)),
    )
    captured: dict[str, str] = {}
    for pattern, candidates in patterns:
        if not pattern:
            continue
        found = _search(pattern, candidates)
        if found is None:
            return None
        captured |= found
    if rule.range:
        ranges = [m.fields for m in matches if m.rule == number]
        if not ranges:
            return None
        captured |= min(sorted(fields.items()) for fields in ranges)
    return captured


def _search(pattern: str, candidates: Sequence[str]) -> dict[str, str] | None:
    compiled = _compile(pattern)
    for text in candidates:
        if match := compiled.search(text):
            return {name: value for name, value in match.groupdict().items() if value is not None}
    return None


@functools.lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _texts(facts: Iterable[Fact]) -> dict[str, list[str]]:
    names = (keys.PROCESS_NAME, keys.PROCESS_COMMAND, keys.THREAD_NAME, keys.PROCESS_RANK)
    texts: dict[str, set[str]] = {name: set() for name in names}
    for fact in facts:
        if fact.key in texts:
            texts[fact.key].add(fact.value)
    return {name: sorted(values) for name, values in texts.items()}


def _is_rank(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 18
