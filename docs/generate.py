"""Writes docs/configuration.md and docs/ledger.md from the types' own docstrings.

`python docs/generate.py` writes them, `--check` says whether they are current (exit 1 if not).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from schemas import ledger as document
from schemas.config import Config
from schemas.ledger import GroupRow, Ledger
from stream.describe import Field, cell, doc_of, fields_of, toml_value, type_text

FOLDER = Path(__file__).resolve().parent
NOTE = "<!-- Made by `make docs` from the types in schemas/; edit those. -->\n"


def configuration() -> str:
    """Return the page on the configuration."""
    lines = [
        NOTE,
        "# Configuration",
        "",
        "TOML; every key has a default, and no file at all is the same as an empty one. `gpu-ledger config init FILE`",
        "writes one to start from, `config check FILE` names what is wrong, `config show FILE` prints it with every",
        "default. An unknown key is an error. Only what decides figures is here: two configurations with the same",
        "digest make the same ledger of the same events.",
        "",
        "A *pattern* is a regular expression in the syntax of Python's `re`, searched for anywhere in the text.",
        "A *template* is text with `{field}` in it. A *duration* is a number and a unit (`ns`, `us`, `ms`, `s`, `m`,",
        '`h`), such as `"250ms"`. [examples/world_model.toml](../examples/world_model.toml) uses most of it.',
        "",
    ]
    default = Config()
    for field in fields_of(Config):
        lines += _configuration_table(field, field.name, getattr(default, field.name))
    return "\n".join(lines).rstrip() + "\n"


def _configuration_table(field: Field, path: str, value: object) -> Iterator[str]:
    inner = field.inner
    if inner is None:
        raise TypeError(f"{path} is no table")
    yield f"## `[[{path}]]`" if field.repeats else f"## `[{path}]`"
    yield ""
    for text in (field.doc, doc_of(inner)):
        if text:
            yield text
            yield ""
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    nested = []
    for key in fields_of(inner):
        if key.inner is not None:
            nested.append(key)
            continue
        known = None if field.repeats else getattr(value, key.name)
        default = (
            "needed"
            if key.required and field.repeats
            else f"`{toml_value(known if known is not None else key.default)}`"
        )
        yield f"| `{key.name}` | {cell(type_text(key.hint))} | {cell(default)} | {cell(key.doc)} |"
    yield ""
    for key in nested:
        yield from _configuration_table(key, f"{path}.{key.name}", getattr(value, key.name))


def ledger() -> str:
    """Return the page on the ledger."""
    lines = [
        NOTE,
        "# The ledger",
        "",
        "`gpu-ledger run CAPTURE... --out DIR` writes `ledger.json` and `groups.csv`; `--json` prints the former.",
        "",
        *doc_of(document).split("\n")[2:],
        "",
        "## `ledger.json`",
        "",
    ]
    lines += _struct(Ledger, "key")
    seen: set[type] = {Ledger}
    todo: list[type[msgspec.Struct]] = [Ledger]
    while todo:
        for field in fields_of(todo.pop(0)):
            inner = field.inner
            if inner is not None and inner not in seen:
                seen.add(inner)
                todo.append(inner)
                lines += [f"### {inner.__name__}", "", doc_of(inner), "", *_struct(inner, "key")]
    lines += ["## `groups.csv`", "", doc_of(GroupRow), "", *_struct(GroupRow, "column")]
    return "\n".join(lines).rstrip() + "\n"


def _struct(kind: type[msgspec.Struct], what: str) -> Iterator[str]:
    yield f"| {what} | type | meaning |"
    yield "|---|---|---|"
    for field in fields_of(kind):
        text = type_text(field.hint)
        if field.inner is not None:
            name = field.inner.__name__
            text = re.sub(r"\btables?$", f"[{name}](#{name.lower()})", text)
        yield f"| `{field.name}` | {cell(text)} | {cell(field.doc)} |"
    yield ""


PAGES = {"configuration.md": configuration, "ledger.md": ledger}


def main() -> int:
    """Write the pages, or with `--check` compare them."""
    stale = []
    for name, make in PAGES.items():
        path = FOLDER / name
        text = make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{name}")
    if stale and "--check" in sys.argv[1:]:
        print(f"not current: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
