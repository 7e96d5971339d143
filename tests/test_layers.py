"""Who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

OURS = ("schemas", "stream", "consumers")

ALLOWED = {
    "schemas": {"schemas"},
    "consumers": {"schemas", "consumers"},
    "stream.cli": {"schemas", "stream", "consumers"},
    "stream": {"schemas", "stream"},
}

IMPURE = {
    "os",
    "io",
    "time",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "pathlib",
    "shutil",
    "tempfile",
}
EDGES = {"consumers.files"}
"""The modules of `consumers` that are there to touch the disk."""


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield every module of ours with its tree."""
    for package in OURS:
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the full name of all that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(name: str) -> str:
    """Return the layer a module belongs to."""
    return "stream.cli" if name.startswith("stream.cli") else name.partition(".")[0]


def test_each_layer_imports_only_those_below_it(root: Path) -> None:
    """`schemas` imports neither `stream` nor `consumers`, these not each other; the command line all."""
    wrong = [
        f"{name} imports {target}"
        for name, tree in modules(root)
        for target in imports(tree)
        if target.partition(".")[0] in OURS and target.partition(".")[0] not in ALLOWED[layer(name)]
    ]
    assert not wrong


def test_nothing_imports_the_command_line(root: Path) -> None:
    """The command line is the top: what the program does can be used without it."""
    wrong = [
        f"{name} imports {target}"
        for name, tree in modules(root)
        if not name.startswith("stream.cli")
        for target in imports(tree)
        if target.startswith("stream.cli")
    ]
    assert not wrong


def test_the_core_has_neither_clock_nor_io(root: Path) -> None:
    """`schemas` and the processors import no module that reads a clock, the disk or chance."""
    wrong = [
        f"{name} imports {target}"
        for name, tree in modules(root)
        if layer(name) in ("schemas", "consumers") and name not in EDGES
        for target in imports(tree)
        if target in IMPURE or target == "numpy.random"
    ]
    assert not wrong


def test_two_modules_alone_touch_kafka_python(root: Path) -> None:
    """kafka-python is untyped: `stream.log` types its record format, `stream.kafka.client` its clients."""
    users = {name for name, tree in modules(root) for t in imports(tree) if t.partition(".")[0] == "kafka"}
    assert users <= {"stream.log", "stream.kafka.client"}


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["config", "init"]])
def test_small_commands_start_without_heavy_modules(words: list[str]) -> None:
    """Nobody waits for numpy, rich or a database driver to read the help."""
    code = (
        "import sys, contextlib\n"
        "from stream.cli import main\n"
        "with contextlib.suppress(SystemExit):\n"
        f"    main({words!r})\n"
        "heavy = {'numpy', 'rich', 'kafka', 'adbc_driver_sqlite', 'nanoarrow', 'pyarrow', 'structlog', 'shtab'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
