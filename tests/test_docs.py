"""The documentation says what the program does."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stream.cli.arguments import COMMANDS
from stream.cli.words import Parser
from stream.config_file import load_config

LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def test_generated_pages_are_current(root: Path) -> None:
    """docs/configuration.md and docs/ledger.md are what the types say now."""
    done = subprocess.run(
        [sys.executable, root / "docs" / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/architecture.md",
        "docs/linking.md",
        "docs/kafka.md",
    ],
)
def test_links_between_pages_lead_somewhere(root: Path, page: str) -> None:
    """Every relative link of a page points to a file that is there."""
    path = root / page
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{page} links to {target}"


def test_every_command_is_in_the_readme(root: Path) -> None:
    """A person who reads only the README has heard of every command."""
    text = (root / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"gpu-ledger {name}" not in text] == []


def test_the_configuration_in_the_readme_is_one(root: Path, tmp_path: Path) -> None:
    """What a person copies from the README is taken."""
    examples = re.findall(
        r"^```toml\n(.*?)^```", (root / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert examples
    for text in examples:
        (tmp_path / "model.toml").write_text(text, encoding="utf-8")
        load_config(tmp_path / "model.toml")


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the long options of a command and of all its actions."""
    found: set[str] = set()
    for action in parser._actions:
        found.update(option for option in action.option_strings if option.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                found |= options_of(inner)
    return found - {"--help"}


@pytest.mark.parametrize("name", ["topics", "link", "sink", "sessions"])
def test_every_option_on_kafka_is_explained(root: Path, name: str) -> None:
    """docs/kafka.md names every option of the commands that work on Kafka."""
    text = (root / "docs" / "kafka.md").read_text(encoding="utf-8")
    parser = Parser(prog=name)
    COMMANDS[name][0](parser)
    assert [option for option in sorted(options_of(parser)) if option not in text] == []


def test_every_make_target_named_anywhere_exists(root: Path) -> None:
    """README and CONTRIBUTING name only targets the Makefile has."""
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        named = set(
            re.findall(
                r"`make ([a-z]+)`|^ +make ([a-z]+)", (root / page).read_text(encoding="utf-8"), re.MULTILINE
            )
        )
        assert {a or b for a, b in named} <= known
