"""Rewriting range names and telling their fields."""

from __future__ import annotations

import pytest

from consumers.contexts import Contexts
from schemas.config import Config, Context, Rewrite, Rows


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("aten::to, seq = 45866, op_id = 992460", "aten::to"),
        ("aten::copy_, op_id = 1, sizes = [[1, 2]]", "aten::copy_, sizes = [[1, 2]]"),
        ("ProfilerStep#4", "ProfilerStep"),
        ("Optimizer.step#Adam.step", "Optimizer.step#Adam.step"),
        ("Iteration 5", "Iteration 5"),
        ("#3", "#3"),
    ],
)
def test_counters_that_libraries_append_are_taken_off(name: str, text: str) -> None:
    """Default rules leave what a person named, without the numbers a library added."""
    contexts = Contexts(Config())
    assert contexts.elements[contexts.element(name)].text == text


def test_rewrites_are_applied_in_order_and_name_fields() -> None:
    """Each rule sees the outcome of the one before; named captures become fields."""
    config = Config(
        context=Context(
            rewrites=(
                Rewrite(match=r"^vae/", replace=""),
                Rewrite(match=r"^ep(?P<ep>\d+)_chunk(?P<chunk>\d+)", replace="chunk"),
            )
        )
    )
    contexts = Contexts(config)
    element = contexts.elements[contexts.element("vae/ep1_chunk5 #7")]
    assert element.text == "chunk"
    assert dict(element.fields) == {"ep": "1", "chunk": "5"}


def test_rewriting_can_be_switched_off() -> None:
    """Without default rules and own ones a name stays as it was captured."""
    contexts = Contexts(Config(context=Context(default_rewrites=False)))
    assert contexts.elements[contexts.element("aten::to, op_id = 1")].text == "aten::to, op_id = 1"


def test_counters_see_names_as_captured() -> None:
    """What a counter's context pattern matches is not rewritten first."""
    rows = Rows(name="n", count="kernels", match="", context=r"op_id = (?P<op>\d+)")
    contexts = Contexts(Config(rows=(rows,)))
    assert contexts.elements[contexts.element("aten::to, op_id = 7")].matched == ((0, (("op", "7"),)),)
