"""What types say of themselves: the docstrings, types and defaults of msgspec structs, as text.

The configuration's help, its default file and the pages of `docs/` are made of this, so that they
cannot drift from the code.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from schemas.config import DURATION_PATTERN


class Field(NamedTuple):
    """One key of a struct. `hint` is its type as annotated, `inner` the struct in it, if any."""

    name: str
    hint: Any
    default: object
    required: bool
    doc: str

    @property
    def inner(self) -> type[msgspec.Struct] | None:
        """The struct this key holds, alone or in a list or dictionary."""
        return _struct_in(self.hint)

    @property
    def repeats(self) -> bool:
        """Whether it holds a list."""
        return _item(self.hint) is not None


def doc_of(kind: type | types.ModuleType) -> str:
    """Return the docstring of a class or module, unindented."""
    return inspect.cleandoc(kind.__doc__ or "")


def fields_of(kind: type[msgspec.Struct]) -> list[Field]:
    """Return the keys of a struct in order, each with the docstring that follows it."""
    docs = _field_docs(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        Field(field.encode_name, hints[field.name], _default(field), field.required, docs.get(field.name, ""))
        for field in msgspec.structs.fields(kind)
    ]


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.required else field.default


def _field_docs(kind: type) -> dict[str, str]:
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, msgspec.Struct) or base is msgspec.Struct:
            continue
        docs |= _docs_in_module(sys.modules[base.__module__]).get(base.__name__, {})
    return docs


def _docs_in_module(module: types.ModuleType) -> Mapping[str, dict[str, str]]:
    """Return, by class and field, the string that follows each annotated field."""
    found = _PARSED.get(module.__name__)
    if found is None:
        tree = ast.parse(inspect.getsource(module))
        found = {node.name: _docs_in_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}
        _PARSED[module.__name__] = found
    return found


_PARSED: Final[dict[str, dict[str, dict[str, str]]]] = {}


def _docs_in_class(node: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            docs[field.target.id] = inspect.cleandoc(text.value.value)
    return docs


def type_text(hint: Any) -> str:  # noqa: ANN401  (a type as annotations have it)
    """Return a type in a reader's words, such as "list of strings" or "whole number, at least 1"."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _annotated_text(arguments[0], arguments[1:])
    if origin is Literal:
        return " or ".join(f"`{choice!r}`".replace("'", '"') for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_text(a) for a in arguments)
    if (item := _item(hint)) is not None:
        return f"list of {_plural(type_text(item))}"
    if origin is tuple:
        return "[" + ", ".join(type_text(a) for a in arguments) + "]"
    if origin is not None and issubclass(origin, Mapping):
        return f"table of {_plural(type_text(arguments[1]))}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "table"
    return _SIMPLE.get(hint, str(getattr(hint, "__name__", hint)))


_SIMPLE: Final[Mapping[Any, str]] = {
    str: "string",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
}


def _annotated_text(hint: Any, metas: tuple[Any, ...]) -> str:  # noqa: ANN401  (a type as annotations have it)
    text = type_text(hint)
    for meta in metas:
        if not isinstance(meta, msgspec.Meta):
            continue
        if meta.pattern == DURATION_PATTERN:
            text = "duration"
        if meta.ge is not None:
            text += f", at least {meta.ge}"
        if meta.le is not None:
            text += f", at most {meta.le}"
    return text


def _plural(text: str) -> str:
    head, comma, rest = text.partition(",")
    if head in ("string", "number", "whole number", "table"):
        return f"{head}s{comma}{rest}"
    return text


def _item(hint: Any) -> Any:  # noqa: ANN401  (types as annotations have them)
    """Return X of `tuple[X, ...]` or `list[X]`, None for any other type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list or (origin is tuple and len(arguments) == 2 and arguments[1] is ...):
        return arguments[0]
    return None


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:  # noqa: ANN401  (a type as annotations have it)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    for argument in typing.get_args(hint):
        if (found := _struct_in(argument)) is not None:
            return found
    return None


def toml_value(value: object) -> str:
    """Return a value of the configuration as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _toml_string(value)
        case list() | tuple():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
    raise TypeError(f"not a value of the configuration: {value!r}")


def _toml_string(text: str) -> str:
    """Return a string as TOML: literal where it has backslashes, so that patterns can be read."""
    if "\\" in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    escaped = "".join(
        c
        if c.isprintable() and c not in '"\\'
        else {'"': '\\"', "\\": "\\\\", "\n": "\\n"}.get(c, f"\\U{ord(c):08x}")
        for c in text
    )
    return f'"{escaped}"'


def toml_of(table: msgspec.Struct, path: str = "") -> str:
    """Return a configuration as TOML: every key, defaults included."""
    values = {field.name: getattr(table, field.name) for field in fields_of(type(table))}
    plain = [
        f"{key} = {toml_value(value)}" for key, value in values.items() if not _is_table(value) or value == ()
    ]
    parts = ["\n".join(plain)] if plain else []
    for key, value in values.items():
        where = f"{path}{key}"
        if isinstance(value, msgspec.Struct):
            parts.append(f"[{where}]\n{toml_of(value, where + '.')}")
        elif _is_table(value) and value != ():
            parts.extend(f"[[{where}]]\n{toml_of(item, where + '.')}" for item in value)
    return "\n\n".join(parts)


def _is_table(value: object) -> bool:
    if isinstance(value, tuple):
        return any(isinstance(item, msgspec.Struct) for item in value)
    return isinstance(value, msgspec.Struct)


def default_toml(default: msgspec.Struct) -> str:
    """Return a configuration file that changes nothing: every key as a comment, with its meaning."""
    lines = [
        "# Configuration of gpu-ledger. Every key is optional and stands here with its default;",
        "# take the # away from a key to change it. `gpu-ledger config check FILE` checks it.",
    ]
    seen: set[type] = set()
    # TOML wants the keys of a table before the tables in it: lists of tables come last.
    for field in sorted(fields_of(type(default)), key=lambda field: field.repeats):
        lines += _default_table(field, getattr(default, field.name), field.name, seen)
    return "\n".join(lines) + "\n"


def _default_table(field: Field, value: object, path: str, seen: set[type]) -> list[str]:
    """Return the lines of one table; the meaning of a struct met before is not said again."""
    inner = field.inner
    if inner is None:
        raise TypeError(f"{path} is no table")
    known = inner in seen
    seen.add(inner)
    lines = ["", *_comment(field.doc), *([] if known else _comment(doc_of(inner)))]
    lines.append(f"#[[{path}]]" if field.repeats else f"[{path}]")
    nested = []
    for key in fields_of(inner):
        if key.inner is not None:
            nested.append(key)
            continue
        if not known:
            lines += _comment(key.doc)
        # What has no default must stay where its table is there, or the file would not load.
        mark = "" if key.required and not field.repeats else "#"
        example = _example(key) if field.repeats else getattr(value, key.name)
        lines.append(f"{mark}{key.name} = {toml_value(example)}")
    for key in nested:
        lines += _default_table(key, getattr(value, key.name), f"{path}.{key.name}", seen)
    return lines


def _example(field: Field) -> object:
    if not field.required:
        return field.default
    if typing.get_origin(field.hint) is Literal:
        return typing.get_args(field.hint)[0]
    return ""


def _comment(text: str) -> list[str]:
    paragraphs = text.replace("\n\n", "\0").replace("\n", " ").split("\0")
    return [f"# {line}" for paragraph in paragraphs for line in textwrap.wrap(paragraph, 98)]


def cell(text: str) -> str:
    """Return text that can stand in one cell of a Markdown table."""
    return text.replace("\n\n", "<br>").replace("\n", " ").replace("|", "\\|")
