"""The keys of FACTS rows. Values are text; structured ones are JSON.

Facts of a process stand under it, facts of a capture under the process with `global_pid` 0.
"""

from __future__ import annotations

from typing import Final

PROCESS_NAME: Final = "process.name"
PROCESS_COMMAND: Final = "process.command"
PROCESS_RANK: Final = "process.rank"
"""Decimal; from Kineto's distributedInfo or a thread named "MPI Rank n"."""
PROCESS_WORLD_SIZE: Final = "process.world_size"
THREAD_NAME: Final = "thread.name"
"""`thread` is set."""
DEVICE: Final = "device"
"""JSON: {"device": int, "name": str, ...whatever else the source knows}."""
CLOCK_UTC_ZERO: Final = "clock.utc_zero_ns"
CLOCK_SYSTEM: Final = "clock.system_ns"
"""The host's monotonic clock at the capture's zero (nsys `systemClockNs`)."""
METADATA: Final = "metadata."
"""Prefix: `metadata.gpu`, `metadata.driver`, `metadata.cuda`, `metadata.capture_options`,
`metadata.model_commit` and so on; shown in the ledger under the rest of the key."""
SOURCE_FORMAT: Final = "source.format"
"""For example `nsys 3.11.1` or `kineto`."""
SOURCE_FILE: Final = "source.file"
"""The file's own name, never its path."""
SOURCE_MISSING: Final = "source.missing"
"""What the capture lacks, in words: one fact for each."""
SOURCE_NOTE: Final = "source.note"
"""Anything else a reader of the figures should know, in words: one fact for each."""
SOURCE_COUNTS: Final = "source.counts"
"""JSON {str: int}: rows read, used and left out by reason, and what the source itself says it
collected (`collected`, of nsys's diagnostic events)."""
