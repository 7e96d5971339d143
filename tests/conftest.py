"""Fixtures that many tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import schemas

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """Refuse to test the source tree where the installed wheel is meant."""
    if os.environ.get("GPU_LEDGER_INSTALLED") and Path(schemas.__file__).is_relative_to(ROOT / "schemas"):
        raise pytest.UsageError("tests were to run against the wheel, but import the source tree")


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def captures() -> Path:
    """Return the folder of real captures, which are too large to be in the repository.

    Without them a test is skipped, but never in CI: there they must be.
    """
    folder = ROOT.parent / "shared" / "captures"
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"the real captures are not at {folder}")
        pytest.skip(f"the real captures are not at {folder}")
    return folder
