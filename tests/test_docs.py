"""The documentation says what the program does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stream.cli.arguments import COMMANDS

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
    "page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md", "docs/linking.md"]
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
