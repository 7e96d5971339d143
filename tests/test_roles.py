"""What processes are called."""

from __future__ import annotations

import itertools

import pytest

from consumers.roles import family_of, fill, name_process, role_of, shown_pids
from schemas.config import RoleRule, Roles
from schemas.deltas import Fact, RoleMatch
from schemas.types import NONE, Process

P = Process("node1", 145 << 24)


def fact(key: str, value: str, thread: int = NONE) -> Fact:
    """Return a fact of a process or one of its threads."""
    return Fact("capture", 0, thread, key, value)


def rules(*each: RoleRule) -> Roles:
    """Return role rules."""
    return Roles(rules=each)


def test_first_rule_that_matches_names_the_process() -> None:
    """Rules are tried in order and the first one wins."""
    both = rules(
        RoleRule(role="a", command="nothing"),
        RoleRule(role="b", command="serve"),
        RoleRule(role="c", command="serve"),
    )
    assert role_of(both, P, [fact("process.command", "python serve.py")]) == "b"


def test_all_patterns_of_a_rule_must_match() -> None:
    """A rule with two patterns needs both."""
    rule = rules(RoleRule(role="vae", process="python", thread="^vae"))
    facts = [fact("process.name", "python3.12")]
    assert role_of(rule, P, facts) == "pid_145"
    assert role_of(rule, P, [*facts, fact("thread.name", "vae-0", thread=7)]) == "vae"


def test_named_captures_stand_in_the_role() -> None:
    """A template takes named captures, and rank, pid and host."""
    rule = rules(RoleRule(role="{kind}_rank{rank}@{host}/{pid}", thread=r"(?P<kind>\w+)-(?P<rank>\d+)"))
    assert role_of(rule, P, [fact("thread.name", "dit-3", thread=7)]) == "dit_rank3@node1/145"


def test_a_captured_rank_comes_before_the_source_s() -> None:
    """What a rule captures as rank is the rank, whatever the source says."""
    rule = rules(RoleRule(role="dit_rank{rank}", thread=r"dit-(?P<rank>\d+)"))
    facts = [fact("process.rank", "7"), fact("thread.name", "dit-3", thread=7)]
    assert name_process(rule, P, facts) == ("dit_rank3", "3")


def test_an_unknown_rank_is_said_to_be_unknown() -> None:
    """A rank that is nowhere to be found makes `<family>_unknown_rank`."""
    rule = rules(RoleRule(role="dit_rank{rank}", thread=r"dit(-(?P<rank>\d+))?"))
    facts = [fact("thread.name", "dit", thread=7)]
    assert role_of(rule, P, facts) == "dit_unknown_rank"
    assert role_of(rule, P, [*facts, fact("process.rank", "2")]) == "dit_rank2"


def test_a_rank_that_only_the_role_says_is_known() -> None:
    """A role written out with its rank gives row counters their rank, too."""
    assert name_process(rules(RoleRule(role="dit_rank2", pid="^145$")), P, []) == ("dit_rank2", "2")


def test_without_a_rule_the_source_s_rank_or_the_pid_is_the_role() -> None:
    """Processes that no rule matches are told apart all the same."""
    assert role_of(Roles(), P, [fact("process.rank", "3")]) == "rank3"
    assert role_of(Roles(), P, [fact("process.rank", "three")]) == "pid_145"


def test_a_range_rule_needs_a_match_and_takes_the_smallest() -> None:
    """What ranges matched comes from the linker, in no order."""
    rule = rules(RoleRule(role="x"), RoleRule(role="vae_{ep}", range="vae:(?P<ep>.*)"))
    later = Roles(rules=rule.rules[1:])
    assert role_of(later, P, []) == "pid_145"
    matches = [RoleMatch(0, {"ep": "b"}), RoleMatch(0, {"ep": "a"}), RoleMatch(1, {"ep": "0"})]
    for some in itertools.permutations(matches):
        assert role_of(later, P, [], some) == "vae_a"


def test_the_order_of_facts_does_not_matter() -> None:
    """Of several texts that match, the smallest counts, whichever came first."""
    rule = rules(RoleRule(role="rank{rank}", thread=r"worker-(?P<rank>\d+)"))
    facts = [fact("thread.name", f"worker-{n}", thread=n) for n in (3, 1, 2)]
    facts += [fact("process.rank", "9"), fact("process.rank", "8")]
    assert {role_of(rule, P, some) for some in itertools.permutations(facts)} == {"rank1"}


def test_vm_bits_make_no_twins() -> None:
    """The pid shown is bits 24 to 47 of the id: not 20079181, which is 3301965 with a vm bit."""
    assert Process("", (1 << 48) | (3301965 << 24)).pid == 3301965


def test_a_shared_pid_is_shown_with_its_host() -> None:
    """Two processes of one pid are told apart by host, and by vm if that is the same."""
    one, two, alone = Process("a", 5 << 24), Process("b", 5 << 24), Process("b", 6 << 24)
    assert shown_pids([one, two, alone]) == {one: "a:5", two: "b:5", alone: "6"}
    guest = Process("a", 1 << 48 | 5 << 24)
    assert shown_pids([one, guest]) == {one: "a:5@0.0", guest: "a:5@0.1"}


@pytest.mark.parametrize(
    ("role", "family"),
    [
        ("dit_rank0", "dit"),
        ("dit_unknown_rank", "dit"),
        ("text_encoder_rank12", "text_encoder"),
        ("rank3", None),
        ("pid_145", None),
        ("scheduler", None),
        ("page_ranker", None),
    ],
)
def test_a_family_is_what_precedes_the_rank(role: str, family: str | None) -> None:
    """Roles without a rank have no family."""
    assert family_of(role) == family


def test_a_field_without_value_is_unknown() -> None:
    """A template never fails: what is not known is said to be unknown."""
    assert fill("{rank}:{ep}_{chunk}", {"ep": "ep1", "chunk": "chunk5"}) == "unknown:ep1_chunk5"
