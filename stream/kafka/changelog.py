"""A task's state as records of a compacted topic: only what changed is written. Pure.

    link-0/head              version, number of the commit, positions of the inputs, count and digest
                             of the entries: written with every commit
    link-0/entry/<name>      0x00 and the entry; or 0x01 and its size and digest, if it is in chunks
    link-0/chunk/<n>/<name>  chunk n of an entry that is too large for one record

The state is the latest value of every key; one without a value has gone. Whatever compaction has
taken away, that gives the same. `Restored.check` holds it against count and digest of the head, so
a changelog that lost a record is noticed and not gone on from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from schemas.errors import DecodeError
from schemas.records import Topic
from schemas.types import Offset, Partition
from stream.transport import TopicPartition

VERSION: Final = 1
CHUNK_BYTES: Final = 512 * 1024
"""A record of the changelog is not larger: the same bound as for records of events."""

_WHOLE: Final = b"\0"
_CHUNKED: Final = b"\1"
_MODULUS: Final = 1 << 128


class Change(NamedTuple):
    """A record to be written; no value: the key is gone."""

    key: bytes
    value: bytes | None


class Read(msgspec.Struct, frozen=True, array_like=True):
    """An input, and the offset it goes on from."""

    topic: Topic
    partition: Partition
    offset: Offset


class Head(msgspec.Struct, frozen=True):
    """What every commit says. `commit` counts from 1; `digest` is over all entries, in any order."""

    version: int
    task: str
    commit: int
    inputs: tuple[Read, ...]
    entries: int
    digest: bytes

    def positions(self) -> dict[TopicPartition, Offset]:
        """Return where each input goes on."""
        return {TopicPartition(read.topic, read.partition): read.offset for read in self.inputs}


class _Manifest(msgspec.Struct, frozen=True, array_like=True):
    """Of an entry in chunks."""

    size: int
    digest: bytes


class _Entry(NamedTuple):
    digest: int
    chunks: int


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(Head)
_manifest_decoder = msgspec.msgpack.Decoder(_Manifest)


class Changelog:
    """What of a task's state is in its changelog, so that only the rest need be written.

    Holds a digest of every entry, not the entries.
    """

    def __init__(self, task: str, head: Head | None = None, state: Mapping[str, bytes] | None = None) -> None:
        self._task = task
        self._commit = head.commit if head else 0
        self._entries = {name: _entry(name, value) for name, value in (state or {}).items()}
        self._next = self._entries

    @property
    def commit(self) -> int:
        """The number of the last commit; 0 if there was none."""
        return self._commit

    def changes(
        self, state: Mapping[str, bytes], positions: Mapping[TopicPartition, Offset]
    ) -> Iterator[Change]:
        """Yield what makes the changelog say this state and these positions, the head last.

        `accept` makes it count, once it has been committed.
        """
        following = {name: _entry(name, value) for name, value in state.items()}
        self._next = following
        for name, entry in following.items():
            before = self._entries.get(name, _Entry(0, 0))
            if entry.digest != before.digest:
                yield from self._write(name, state[name], before.chunks)
        for name, entry in self._entries.items():
            if name not in following:
                yield Change(self._key("entry", name), None)
                for number in range(entry.chunks):
                    yield Change(self._key("chunk", f"{number}/{name}"), None)
        yield Change(self._key("head"), _encoder.encode(self._head(following, positions)))

    def accept(self) -> None:
        """Take what `changes` last yielded for written."""
        self._entries = self._next
        self._commit += 1

    def _head(self, entries: dict[str, _Entry], positions: Mapping[TopicPartition, Offset]) -> Head:
        inputs = tuple(Read(place.topic, place.partition, at) for place, at in sorted(positions.items()))
        return Head(VERSION, self._task, self._commit + 1, inputs, len(entries), _sum(entries))

    def _write(self, name: str, value: bytes, chunks_before: int) -> Iterator[Change]:
        chunks = _chunks(value)
        for number in range(chunks):
            part = value[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            yield Change(self._key("chunk", f"{number}/{name}"), part)
        for number in range(chunks, chunks_before):
            yield Change(self._key("chunk", f"{number}/{name}"), None)
        if chunks:
            manifest = _Manifest(len(value), hashlib.blake2b(value, digest_size=16).digest())
            yield Change(self._key("entry", name), _CHUNKED + _encoder.encode(manifest))
        else:
            yield Change(self._key("entry", name), _WHOLE + value)

    def _key(self, *parts: str) -> bytes:
        return "/".join((self._task, *parts)).encode("utf-8", "surrogatepass")


class Restoring:
    """Takes the records of a changelog, in order, and says what state they come to."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._latest: dict[str, bytes] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take one record; of other tasks, and of no form of ours, it takes nothing."""
        task, _, name = (key or b"").decode("utf-8", "surrogateescape").partition("/")
        if task != self._task:
            return
        if value is None:
            self._latest.pop(name, None)
        else:
            self._latest[name] = value

    def finish(self) -> tuple[Head, dict[str, bytes]] | None:
        """Return head and state; None if nothing was ever committed.

        Raises:
            DecodeError: the changelog is not whole, not ours, or written by a newer version.

        """
        data = self._latest.get("head")
        if data is None:
            if self._latest:
                raise DecodeError(f"changelog of {self._task} has entries, but no head")
            return None
        head = self._read_head(data)
        state = {
            name.removeprefix("entry/"): self._value(name.removeprefix("entry/"), value)
            for name, value in self._latest.items()
            if name.startswith("entry/")
        }
        entries = {name: _entry(name, value) for name, value in state.items()}
        if len(entries) != head.entries or _sum(entries) != head.digest:
            raise DecodeError(
                f"changelog of {self._task} does not come to the state of commit {head.commit}: "
                f"{len(entries)} entries instead of {head.entries}, or others"
            )
        return head, state

    def _read_head(self, data: bytes) -> Head:
        try:
            head: Head = _head_decoder.decode(data)
        except (msgspec.DecodeError, ValueError) as error:
            raise DecodeError(f"changelog of {self._task}: {error}") from None
        if head.version > VERSION:
            raise DecodeError(
                f"changelog of {self._task} has version {head.version}, this program reads {VERSION}",
                hint="update gpu-ledger",
            )
        return head

    def _value(self, name: str, data: bytes) -> bytes:
        if data[:1] == _WHOLE:
            return data[1:]
        try:
            manifest: _Manifest = _manifest_decoder.decode(data[1:])
        except (msgspec.DecodeError, ValueError) as error:
            raise DecodeError(f"changelog of {self._task}, entry {name}: {error}") from None
        count = -(-manifest.size // CHUNK_BYTES)
        value = b"".join(self._latest.get(f"chunk/{number}/{name}", b"") for number in range(count))
        if len(value) != manifest.size or hashlib.blake2b(value, digest_size=16).digest() != manifest.digest:
            raise DecodeError(f"changelog of {self._task} lacks chunks of entry {name}")
        return value


def _chunks(value: bytes) -> int:
    """Return how many chunks an entry takes; 0 if it is whole in one record."""
    return -(-len(value) // CHUNK_BYTES) if len(value) >= CHUNK_BYTES else 0


def _entry(name: str, value: bytes) -> _Entry:
    hashed = hashlib.blake2b(value, digest_size=16, person=b"gpu-ledger")
    hashed.update(name.encode("utf-8", "surrogatepass"))
    hashed.update(len(value).to_bytes(8, "little"))
    return _Entry(int.from_bytes(hashed.digest(), "little"), _chunks(value))


def _sum(entries: Mapping[str, _Entry]) -> bytes:
    """Return a digest that does not depend on the order of entries."""
    return (sum(entry.digest for entry in entries.values()) % _MODULUS).to_bytes(16, "little")
