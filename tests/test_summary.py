"""The summary at the end of a run: what it must say, and that nothing in a name can spoil it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tiny import write_export

from schemas.ledger import Amount, ClockOffset, Ledger, RoleFigures, UnknownKernel, decode_ledger
from stream.cli.summary import MAX_ROLES, ContextTime, Style, summary

COMMAND = Path(sys.executable).parent / "gpu-ledger"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Return the ledger of three kernels in one range."""
    path = write_export(tmp_path_factory.mktemp("summary") / "tiny.sqlite", kernels=("gemm", "gemm", "relu"))
    done = subprocess.run([COMMAND, "run", path, "--json"], capture_output=True, check=True)
    return decode_ledger(done.stdout)


def role(kernels: int, context: int) -> RoleFigures:
    """Return the figures of a role whose kernels take 1 ms each; all without context are of one reason."""
    left = Amount(kernels=kernels - context, gpu_ns=(kernels - context) * 10**6)
    return RoleFigures(
        kernels=kernels,
        gpu_ns=kernels * 10**6,
        context=Amount(kernels=context, gpu_ns=context * 10**6),
        reasons={"launch_not_captured": left},
        invocations_with_context=None,
        gpu_time_with_context=None,
    )


def test_it_leads_with_the_session_and_its_size(ledger: Ledger) -> None:
    """The first line says how much this is about."""
    assert (
        summary(ledger, [], Style()).splitlines()[0]
        == "tiny: 3 kernels, 1.5 µs of GPU time, 1 role, 2 groups"
    )


def test_a_session_without_kernels_says_so(ledger: Ledger) -> None:
    """No table of nothing."""
    empty = msgspec.structs.replace(ledger, kernel_events=0, per_role={}, unknown_top=[])
    text = summary(empty, [], Style())
    assert text.startswith("tiny: no kernels\n")
    assert "Coverage" not in text


def test_figures_withheld_for_the_same_reason_stand_together(ledger: Ledger) -> None:
    """Each reason is read once, with what it takes away."""
    doubtful = msgspec.structs.replace(ledger, withheld={"a": ["lost"], "b": ["lost"], "c": ["late", "odd"]})
    assert summary(doubtful, [], Style()).endswith("Withheld\n  a, b: lost\n  c: late; odd")


def test_100_percent_means_all_and_0_none(ledger: Ledger) -> None:
    """Rounding never turns a part into the whole, or into nothing."""
    roles = {
        "most": role(1_000_000, 999_999),
        "few": role(1_000_000, 1),
        "whole": role(5, 5),
        "none": role(5, 0),
    }
    lines = summary(msgspec.structs.replace(ledger, per_role=roles), [], Style()).splitlines()
    shares = {
        line.split()[0]: line.split()[2] for line in lines if line.split()[:1] and line.split()[0] in roles
    }
    assert shares == {"most": "99.99", "few": "0.01", "whole": "100.00", "none": "0.00"}


def test_many_roles_are_cut_and_summed(ledger: Ledger) -> None:
    """A thousand ranks fit on a screen; the last line is over all of them."""
    roles = {f"rank{i}": role(10, 5) for i in range(1000)}
    text = summary(msgspec.structs.replace(ledger, per_role=roles), [], Style())
    assert f"rank{MAX_ROLES - 1} " in text
    assert f"rank{MAX_ROLES} " not in text
    assert "all 1000 10,000 50.00 %" in " ".join(text.split())
    assert f"({1000 - MAX_ROLES} roles are not shown)" in text


def test_odd_input_is_named_with_its_number(ledger: Ledger) -> None:
    """What a reader should doubt is said in words."""
    odd = msgspec.structs.replace(ledger.quality.odd, launched_after_start=1200, second_kernels=1)
    offsets = [ClockOffset(host="", pid=1, device=0, offset_ns=-12_000_000)]
    quality = msgspec.structs.replace(ledger.quality, odd=odd, clock_offsets=offsets, missing_rows=7)
    text = summary(msgspec.structs.replace(ledger, quality=quality, final=False), [], Style())
    assert "the captures have not ended: this is not the last word" in text
    assert "7 rows were published and never read" in text
    assert "kernels that start before their launch (by up to 12 ms: the GPU's clock is off): 1,200" in text
    assert "used up by another one: 1" in text


def test_names_neither_break_lines_nor_colour_them(ledger: Ledger) -> None:
    """Control characters are shown, long names cut in the middle, every line fits."""
    name = "kernel\n\x1b[31m" + "x" * 100_000 + "end"
    hostile = msgspec.structs.replace(
        ledger,
        label="label\x07" * 100,
        per_role={name: role(3, 1)},
        unknown_top=[UnknownKernel(role=name, name=name, count=3)],
    )
    text = summary(hostile, [ContextTime((name, name), 3, 5)], Style(width=80))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert all(len(line) <= 80 for line in text.partition("Withheld")[0].splitlines())
    assert any(line.endswith("end") for line in text.splitlines())


def test_names_cut_to_the_page_can_still_be_told_apart(ledger: Ledger) -> None:
    """Kernels lose what they have in common, contexts keep the end of every name, or else whole ranges."""
    kernel = (
        "void at::native::elementwise_kernel<(int)4, void at::native::run<at::native::{}<float>>>(int, T3)"
    )
    names = [kernel.format("AddFunctor"), kernel.format("MulFunctor"), "a::f(int)", "b::f(int)", "c::g(int)"]
    unknown = [UnknownKernel(role="rank0", name=name, count=9 - i) for i, name in enumerate(names)]
    contexts = [
        ContextTime(("step", "decoder.up_blocks.1.resnets.1.conv3d", "aten::conv3d"), 1, 9),
        ContextTime(("step", *("middle" * 5 for _ in range(9)), "aten::conv3d"), 1, 8),
    ]
    text = summary(msgspec.structs.replace(ledger, unknown_top=unknown), contexts, Style(width=80))
    assert [line.split("rank0  ")[1] for line in text.splitlines() if "rank0" in line] == [
        "elementwise_kernel<4, run<AddFunctor<float>>>",
        "elementwise_kernel<4, run<MulFunctor<float>>>",
        "a::f(int)",
        "b::f(int)",
        "g",
    ]
    assert [line.split("kernels  ")[1] for line in text.splitlines() if "conv3d" in line] == [
        "step / decoder.…resnets.1.conv3d / aten::conv3d",
        "step / … / middle…lemiddlemiddle / aten::conv3d",
    ]


def test_remarks_are_broken_between_words(ledger: Ledger) -> None:
    """A long reason for a figure withheld fits the page, and its later lines stand further in."""
    doubtful = msgspec.structs.replace(ledger, withheld={"a": ["no step was steady " * 5]})
    lines = summary(doubtful, [], Style(width=60)).partition("Withheld\n")[2].splitlines()
    assert [len(line) - len(line.lstrip()) for line in lines] == [2, 4]
    assert max(map(len, lines)) <= 60


def test_colour_is_for_terminals(ledger: Ledger) -> None:
    """Headings are bold where asked for, and the text is otherwise the same."""
    plain, coloured = summary(ledger, [], Style()), summary(ledger, [], Style(colour=True))
    assert "\x1b" not in plain
    assert coloured.replace("\x1b[1m", "").replace("\x1b[33m", "").replace("\x1b[0m", "") == plain
