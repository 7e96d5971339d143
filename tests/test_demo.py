"""What `make demo` shows: a made-up capture whose right answers are known, through the whole program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(sys.executable).parent / "gpu-ledger"
KERNELS = 120_000

NUMBER = (int, float)
OLD_KEYS: dict[str, Any] = {
    "label": str,
    "run": str,
    "generated_at": str,
    "kernel_events": int,
    "link_status": {"no_nvtx_context": int, "total": int, "context": int},
    "groups": int,
    "roles": {"3301965": str},
    "dit_pids": [int],
    "vae_pids": [int],
    "clock": {
        "session_systemClockNs": int,
        "anchor_offset_ns": int,
        "anchor_count": int,
        "anchor_spread_ns": int,
    },
    "windows_ns": {"measured": [[int]], "steady": [[int]]},
    "coverage": {
        "invocations_with_context": NUMBER,
        "steady_gpu_time_with_context": NUMBER,
        "steady_gpu_ns_total": int,
        "dit_forward_rows": {"3307870": int},
        "vae_dispatch_rows": {"0:ep1_chunk0": int},
    },
    "unknown_top": [{"role": str, "name": str, "count": int}],
    "seconds": NUMBER,
    "scope": str,
}
"""Keys and types of the report this one takes the place of: its readers go on working."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, root: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ledger of a made-up capture under the example configuration, and the truth."""
    folder = tmp_path_factory.mktemp("demo")
    capture = folder / "capture.sqlite"
    words: list[str | Path] = [COMMAND, "synth", capture, "--kernels", str(KERNELS)]
    subprocess.run(words, check=True, capture_output=True)
    config = root / "examples" / "world_model.toml"
    words = [COMMAND, "run", capture, "--config", config, "--json"]
    done = subprocess.run(words, check=True, capture_output=True)
    return json.loads(done.stdout), json.loads((folder / "capture.truth.json").read_bytes())


def assert_shape(value: object, shape: object, path: str) -> None:
    """Hold a value to a shape: a type, a list of one, or a dictionary with at least these keys."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), path
        for key, inner in shape.items():
            assert key in value, f"{path}.{key}"
            assert_shape(value[key], inner, f"{path}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list), path
        assert value, path
        for item in value:
            assert_shape(item, shape[0], f"{path}[]")
    else:
        assert isinstance(value, shape), path  # type: ignore[arg-type]
        assert not isinstance(value, bool), path


def figures_of(truth: dict[str, Any]) -> dict[str, Any]:
    """Return figures of the truth as the ledger writes them."""
    classes = {
        name: {"kernels": tally["count"], "gpu_ns": tally["gpu_ns"]}
        for name, tally in truth["classes"].items()
    }
    context = classes.pop("context")
    return {"kernels": truth["kernels"], "gpu_ns": truth["gpu_ns"], "context": context, "reasons": classes}


def test_the_old_reports_keys_are_all_there_with_their_types(
    demo: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """Whoever reads the report made offline reads this one, too."""
    assert_shape(demo[0], OLD_KEYS, "ledger")
    assert demo[0]["final"] is True
    assert demo[0]["withheld"] == {}


def test_every_process_appears_once_under_its_own_pid(demo: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """A vm's number in the process id makes no twins, 2^24 apart, and no role without a rank."""
    ledger, _ = demo
    assert ledger["dit_pids"] == [3307870, 3307871, 3307872, 3307873]
    assert ledger["vae_pids"] == [3301965, 3301966, 3301967, 3301968]
    expected = {str(3307870 + i): f"dit_rank{i}" for i in range(4)}
    expected |= {str(3301965 + i): f"vae_rank{i}" for i in range(4)}
    assert ledger["roles"] == expected


def test_kernels_and_gpu_time_are_the_truth_by_role_and_class(
    demo: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """Every kernel of every role is in the class it was made for."""
    ledger, truth = demo
    assert ledger["kernel_events"] == truth["total"]["kernels"] == KERNELS
    assert ledger["reasons"] == figures_of(truth["total"])["reasons"]
    assert ledger["groups"] == truth["groups"]["example"]
    for role, expected in truth["per_role"].items():
        found = ledger["per_role"][role]
        assert {key: found[key] for key in ("kernels", "gpu_ns", "context", "reasons")} == figures_of(
            expected
        )
    assert ledger["unknown_top"] == truth["unknown_top"]


def test_windows_clock_and_counters_are_the_truth(demo: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Spans, steady coverage, clock anchors and row counters are as they were made."""
    ledger, truth = demo
    coverage, steady = ledger["coverage"], truth["steady"]
    assert ledger["windows_ns"] == truth["windows_ns"]
    assert ledger["clock"] == truth["clock"]
    assert coverage["steady_gpu_ns_total"] == steady["gpu_ns"]
    assert (
        coverage["steady_gpu_time_with_context"] == steady["classes"]["context"]["gpu_ns"] / steady["gpu_ns"]
    )
    for name, counts in truth["counters"].items():
        assert coverage[name] == counts


def test_what_was_made_odd_is_counted(demo: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Zero and negative durations are kept and counted, and the whole export is known to be whole."""
    ledger, truth = demo
    assert ledger["quality"]["odd"]["zero_durations"] == truth["zero_durations"]
    assert ledger["quality"]["odd"]["negative_durations"] == truth["negative_durations"]
    (source,) = ledger["quality"]["sources"]
    assert source["export_complete"] is True
    assert source["counts"]["collected"] == truth["collected"]
