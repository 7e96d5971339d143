"""Fixtures that many tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_broker import BrokerError, jars, shared_cluster

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


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the servers of a real Kafka broker that all tests share, each under a prefix of its own.

    Without Java and Maven a test is skipped, but never in CI: there they must be.
    """
    try:
        jars()
    except BrokerError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    base = tmp_path_factory.getbasetemp()
    # All test processes of one run have the same parent folder.
    with shared_cluster(
        (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "kafka"
    ) as servers:
        yield servers
