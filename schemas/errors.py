"""Every error a person can meet: what happened, where, and what to do next.

The command line prints one of these as a single line and exits with its `exit_code`;
anything else that escapes is a fault in gpu-ledger itself.
"""

from __future__ import annotations


class GpuLedgerError(Exception):
    """Base of all expected failures.

    `what` says what happened, `where` names the file, key or record (empty if there is none)
    and `hint` the next step to take (empty if there is none).
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(self.line())

    def line(self) -> str:
        """Return the error as one line, control characters made visible."""
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.hint:
            parts.append(self.hint)
        return printable("; ".join(parts))


class UsageError(GpuLedgerError):
    """The command was called wrongly: nothing was read or written."""

    exit_code = 2


class InputError(GpuLedgerError):
    """A capture cannot be read as what it claims to be. Nothing of it may be half taken."""


class OutputError(GpuLedgerError):
    """A result cannot be written. What stood there before is untouched."""


class ConfigError(GpuLedgerError):
    """The configuration is wrong; `where` gives file and key."""


class TransportError(GpuLedgerError):
    """Records cannot be moved. Restarting resumes from the last commit."""


class NotAllowedError(TransportError):
    """The brokers know who we are and do not let us. Trying again does not help: it is for a person."""


class FencedError(TransportError):
    """Another process has taken the task over: what this one did since its last commit is void.

    Whoever has it goes on from that commit, so this one has nothing to repair and must not retry.
    """


class RecordsGoneError(TransportError):
    """Records that are still needed are gone or cannot be read. Going on would skip them in silence."""


class DecodeError(GpuLedgerError):
    """Bytes are not a record of ours, or not whole. The only error decoding raises.

    What it quotes may come from the bytes themselves, so it is cut at 300 characters.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what if len(what) <= 300 else f"{what[:297]}...", where=where, hint=hint)


class DeadLettersError(GpuLedgerError):
    """So many records cannot be read that the topic must hold something else, or be damaged.

    Going on would turn all of it into dead letters, one by one, while no ledger is right.
    """


class DigestMismatchError(GpuLedgerError):
    """A live session was opened under another configuration than the one it is counted by."""


def printable(text: str) -> str:
    """Return `text` with everything that could break or forge a line backslash-escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
