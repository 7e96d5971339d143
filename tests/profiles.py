"""How hard Hypothesis tries: a modest number of examples, or many where the environment says so.

`HYPOTHESIS_PROFILE=long` is for a night, the default for every change.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

_PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink]
"""All but the one that explains: on stories it takes minutes and says little."""
_COMMON: dict[str, Any] = {
    "phases": _PHASES,
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}

settings.register_profile("short", max_examples=100, derandomize=bool(os.environ.get("CI")), **_COMMON)
settings.register_profile("long", max_examples=5_000, **_COMMON)


def load() -> None:
    """Take up the profile the environment names."""
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


def fewer() -> settings:
    """Return settings with a third of the examples, for what costs many times as much as others."""
    assert settings.default is not None
    return settings(max_examples=settings.default.max_examples // 3)
