"""Configuration files: TOML in, a checked `Config` out, and errors that name file and key."""

from __future__ import annotations

import difflib
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from schemas.config import DURATION_PATTERN, Config, Spans, Table
from schemas.config_checks import check_config
from schemas.errors import ConfigError

_MAX_BYTES: Final = 64 * 2**20
"""Of a configuration, or a file of spans: a larger one is some other file given by mistake."""


def load_config(path: Path | None) -> Config:
    """Return the configuration in a TOML file, or the default one without a file.

    Files of spans it names are read (beside it, unless absolute) and their spans stand in `times`,
    so that the digest covers what they hold and not where they lie.

    Raises:
        ConfigError: the file cannot be read, or is not a configuration.

    """
    if path is None:
        return Config()
    where = str(path)
    try:
        raw = tomllib.loads(_read(path, where).decode("utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}", where=where) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"not UTF-8: byte {error.start} is {error.object[error.start]:#04x}", where=where
        ) from None
    except ValueError:
        raise ConfigError(
            "not a configuration: a number in it has thousands of digits", where=where
        ) from None
    except RecursionError:
        raise ConfigError("not a configuration: nested too deeply", where=where) from None
    config: Config = _table(Config, raw, where, "")
    config = _with_files(config, path, where)
    check_config(config, where)
    return config


def _read(path: Path, where: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=where) from None
    except ValueError as error:
        raise ConfigError(f"cannot be read: {error}", where=where) from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"larger than {_MAX_BYTES >> 20} MiB, surely another file", where=where)
    return data


def _with_files(config: Config, path: Path, where: str) -> Config:
    changes: dict[str, Spans] = {}
    for purpose in ("measured", "steady"):
        spans: Spans = getattr(config.windows, purpose)
        if spans.by != "file" or not spans.file:
            continue
        key = f"windows.{purpose}"
        if spans.times:
            raise ConfigError(
                "given beside `file`", where=f"{where}: {key}.times", hint="take one of them out"
            )
        times = _read_spans(path.parent / spans.file, f"{where}: {key}.file")
        changes[purpose] = msgspec.structs.replace(spans, times=times, file="")
    if not changes:
        return config
    windows = msgspec.structs.replace(config.windows, **changes)
    return msgspec.structs.replace(config, windows=windows)


def _read_spans(path: Path, where: str) -> tuple[tuple[int, int], ...]:
    data = _read(path, f"{where}: {path}")
    try:
        return msgspec.json.decode(data, type=tuple[tuple[int, int], ...])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(
            f"not a list of spans: {error}",
            where=f"{where}: {path}",
            hint="write a JSON list of [start, end] in whole ns of the application's clock",
        ) from None


def _table(kind: type[Table], raw: object, where: str, path: str) -> Any:  # noqa: ANN401  (an instance of `kind`)
    """Return `raw` as a table of type `kind`; ConfigError with the path of what is wrong."""
    if not isinstance(raw, dict):
        raise _error(where, path, f"must be a table, not {_toml_type(raw)}")
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in fields:
            raise _unknown(where, f"{path}{key}", key, list(fields))
        values[key] = _value(hints[key], value, where, f"{path}{key}")
    for name, field in fields.items():
        if name not in values and field.required:
            raise _error(where, f"{path}{name}", "missing")
    return kind(**values)


def _value(hint: Any, raw: object, where: str, path: str) -> object:  # noqa: ANN401  (a type as annotations have it)
    if isinstance(hint, type) and issubclass(hint, Table):
        return _table(hint, raw, where, f"{path}.")
    item = _item_type(hint)
    if item is not None:
        if not isinstance(raw, list):
            expected = "a list of tables ([[...]])" if _is_table(item) else "a list"
            raise _error(where, path, f"must be {expected}, not {_toml_type(raw)}")
        return tuple(_value(item, value, where, f"{path}[{i}]") for i, value in enumerate(raw))
    try:
        return msgspec.convert(raw, hint)
    except msgspec.ValidationError as error:
        raise _error(where, path, _reason(hint, raw, str(error))) from None


def _item_type(hint: Any) -> Any:  # noqa: ANN401  (types as annotations have them)
    """Return X of `tuple[X, ...]`, None for any other type."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is ...:
        return arguments[0]
    return None


def _is_table(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, Table)


def _reason(hint: Any, raw: object, message: str) -> str:  # noqa: ANN401  (a type as annotations have it)
    """Say in a reader's words what msgspec found wrong."""
    if typing.get_origin(hint) is Literal:
        choices = ", ".join(f'"{choice}"' for choice in typing.get_args(hint))
        return f"must be one of {choices}, not {_toml_text(raw)}"
    if any(getattr(meta, "pattern", None) == DURATION_PATTERN for meta in typing.get_args(hint)[1:]):
        return f'must be a number and a unit (ns, us, ms, s, m, h), such as "250ms", not {_toml_text(raw)}'
    if message.startswith("Expected `") and ", got `" in message:
        expected = message.removeprefix("Expected `").partition("`")[0]
        return f"must be {_NAMES.get(expected, expected)}, not {_toml_type(raw)}"
    return f"{message[:1].lower()}{message[1:]}".replace("`", "")


_NAMES: Final = {"int": "a whole number", "float": "a number", "str": "a string", "bool": "true or false"}


def _toml_type(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return "a whole number"
        case float():
            return "a fraction"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "a table"
    return "a date or time"


def _toml_text(value: object) -> str:
    return f'"{value[:60]}"' if isinstance(value, str) else _toml_type(value)


def _error(where: str, path: str, problem: str) -> ConfigError:
    return ConfigError(problem, where=f"{where}: {path.removesuffix('.')}")


def _unknown(where: str, path: str, key: str, known: list[str]) -> ConfigError:
    """Name the nearest known key: one beside it, else one of that name in another table."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    elsewhere = [] if near else [p for p in _all_keys(Config) if p.rpartition(".")[2] == key]
    distant = near or elsewhere or difflib.get_close_matches(key, list(_all_keys(Config)), n=1, cutoff=0.6)
    hint = f"did you mean {distant[0]!r}?" if distant else f"known here: {', '.join(known)}"
    return ConfigError("unknown key", where=f"{where}: {path}", hint=hint)


def _all_keys(kind: type[Table], path: str = "") -> Iterator[str]:
    for name, hint in typing.get_type_hints(kind).items():
        yield f"{path}{name}"
        inner = _item_type(hint) or hint
        if _is_table(inner):
            yield from _all_keys(inner, f"{path}{name}.")
