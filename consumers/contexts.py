"""Names and contexts as numbers: interned once, compared as integers ever after."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import numpy as np

from schemas.columns import Int64s, cut_name
from schemas.config import Config, Context

DEFAULT_REWRITES = (
    (
        re.compile(
            # PyTorch's emit_nvtx writes ", seq = 12, op_id = 34" and sizes after the operator's name.
            r",? ?\b(?:op_ids?|seq|seq_id|sequence_number) ?[=:] ?\[?-?[0-9]+(?:, ?-?[0-9]+)*\]?"
            r"|(?<=[^\s#])\s*#[0-9]+\b"
        ),
        "",
    ),
)
"""Counters that libraries append to range names; with them no two ranges would share a group."""

_CACHE_LIMIT = 1 << 16
ROOT = -1


class Element(NamedTuple):
    """One range of a context: its rewritten name and what its own name gave away.

    `fields` are the named captures of the rewrites, `matched` those of the row counters whose
    `context` pattern it matches, by counter.
    """

    text: str
    fields: tuple[tuple[str, str], ...]
    matched: tuple[tuple[int, tuple[tuple[str, str], ...]], ...]


def captures(match: re.Match[str]) -> tuple[tuple[str, str], ...]:
    """Return the named captures that took part in a match."""
    return tuple((k, v) for k, v in match.groupdict().items() if v is not None)


class Names:
    """Strings by number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        """Return the number of a string, a new one if it is new."""
        number = self._ids.get(text)
        if number is None:
            number = self._ids[text] = len(self.texts)
            self.texts.append(text)
        return number


class Contexts:
    """The tree of contexts seen so far, and the rewriting that leads into it.

    A *node* is a context with all that its ranges' names gave away; its *plain* context is the
    tuple of rewritten names alone, by which kernels are grouped. Both are numbers; ROOT is none.
    """

    def __init__(self, config: Config) -> None:
        self._rules = rewrites(config.context)
        self._counters = [(i, re.compile(rows.context)) for i, rows in enumerate(config.rows) if rows.context]
        self.elements: list[Element] = []
        self._element_ids: dict[Element, int] = {}
        self._by_name: dict[str, int] = {}
        self.parents: list[int] = []
        self.node_elements: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}
        self._plain_of: list[int] = []
        self.plain_parents: list[int] = []
        self.plain_texts: list[str] = []
        self._plains: dict[tuple[int, str], int] = {}

    def element(self, name: str) -> int:
        """Return the element that a range name, as captured, becomes."""
        try:
            return self._by_name[name]
        except KeyError:
            number = self._new_element(name)
        if len(self._by_name) >= _CACHE_LIMIT:
            self._by_name.clear()
        self._by_name[name] = number
        return number

    def _new_element(self, name: str) -> int:
        text = name
        fields: dict[str, str] = {}
        for pattern, replacement in self._rules:
            if pattern.groupindex and (found := pattern.search(text)):
                fields.update(captures(found))
            text = pattern.sub(replacement, text)
        matched = tuple(
            (i, captures(found)) for i, pattern in self._counters if (found := pattern.search(name))
        )
        return self.add_element(Element(cut_name(text), tuple(fields.items()), matched))

    def add_element(self, element: Element) -> int:
        """Return the number of an element, a new one if it is new."""
        number = self._element_ids.get(element)
        if number is None:
            number = self._element_ids[element] = len(self.elements)
            self.elements.append(element)
        return number

    def node(self, parent: int, element: int) -> int:
        """Return the context `element` makes within `parent`."""
        number = self._nodes.get((parent, element))
        if number is None:
            number = self._nodes[parent, element] = len(self.parents)
            self.parents.append(parent)
            self.node_elements.append(element)
            above = ROOT if parent == ROOT else self._plain_of[parent]
            self._plain_of.append(self._plain(above, self.elements[element].text))
        return number

    def children(self, parents: Int64s, elements: Int64s) -> Int64s:
        """Return `node` of each pair, one Python step per distinct pair only."""
        width = len(self.elements) + 1
        keys, inverse = np.unique((parents + 1) * width + elements, return_inverse=True)
        nodes = [self.node(int(k) // width - 1, int(k) % width) for k in keys.tolist()]
        return np.array(nodes, np.int64)[inverse]

    def _plain(self, parent: int, text: str) -> int:
        number = self._plains.get((parent, text))
        if number is None:
            number = self._plains[parent, text] = len(self.plain_parents)
            self.plain_parents.append(parent)
            self.plain_texts.append(text)
        return number

    def plain(self, nodes: Int64s) -> Int64s:
        """Return the plain context of each node."""
        return np.array([*self._plain_of, ROOT], np.int64)[nodes]

    def plain_names(self, plain: int) -> tuple[str, ...]:
        """Return a plain context as the names of its ranges, outermost first."""
        names = []
        while plain != ROOT:
            names.append(self.plain_texts[plain])
            plain = self.plain_parents[plain]
        return tuple(reversed(names))

    def path(self, node: int) -> list[Element]:
        """Return the elements of a node, outermost first."""
        path = []
        while node != ROOT:
            path.append(self.elements[self.node_elements[node]])
            node = self.parents[node]
        return path[::-1]


def rewrites(context: Context) -> list[tuple[re.Pattern[str], str]]:
    """Return the rewriting rules in the order they are applied."""
    own = [(re.compile(rule.match), rule.replace) for rule in context.rewrites]
    return [*DEFAULT_REWRITES, *own] if context.default_rewrites else own


def fields_text(*parts: tuple[tuple[str, str], ...]) -> str:
    """Return fields as the JSON text that stands in deltas; later ones win."""
    merged = {key: value for part in parts for key, value in part}
    return json.dumps(merged, sort_keys=True, ensure_ascii=False)
