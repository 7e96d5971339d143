"""The names of a capture, each once where that is cheap, out of memory where they are many.

A name is known by an int64. The first ones are numbered, so that they are looked up in no time;
the id of any other says where its bytes begin in one long row of bytes and how many they are. So
there is no table of names that could outgrow memory, and names that never repeat cost their bytes
on disk and nothing else.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas.columns import MAX_NAME_BYTES, Int64s, cut_name
from stream.producers.columnar import Texts
from stream.producers.spill import Spill

_NUMBERED: Final = 1 << 17
"""So many names are numbered; the others' ids are `_PLACED` and more."""

_PLACED: Final = 1 << 32
_LENGTH_BITS: Final = 16
_LENGTH_MASK: Final = (1 << _LENGTH_BITS) - 1

_KEPT_BYTES: Final = 32 << 20
"""Bytes of numbered names kept as text, so that they are not read again for every batch."""

_LONG: Final = 512
"""Names longer than this are told apart by a digest each, not eight bytes at a time together."""

_GAP: Final = 1 << 9
"""Names closer together than this are read in one go: more would cost more than another call."""

_SETTLED_BYTES: Final = 64 << 20
"""Names of a run that lie further apart stay where they are: bringing them together would fill memory."""

_MULTIPLIERS: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_TAILS: Final = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)

EMPTY: Final = 0
"""The id of the empty name."""


class Names:
    """A store of names; `add`, `add_table` and `one` may be called from several threads."""

    def __init__(self, spill: Spill) -> None:
        self._bytes = spill.bytes()
        self._known: dict[bytes, int] = {b"": EMPTY}
        self._spans = np.zeros(_NUMBERED, np.int64)
        self._numbered = 1
        self._fixed = 1
        self._kept: dict[int, str] = {EMPTY: ""}
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def add_table(self, texts: Texts) -> Int64s:
        """Return the id of every row (int64), for a table whose names are different anyway.

        Only before anything else is added: its ids follow from the order of the rows.
        """
        spans = self._append(texts, np.arange(len(texts.starts)))
        count = min(len(spans), _NUMBERED - self._numbered)
        ids = spans + _PLACED
        ids[:count] = np.arange(self._numbered, self._numbered + count)
        self._spans[self._numbered : self._numbered + count] = spans[:count]
        self._numbered += count
        self._fixed = self._numbered
        return ids

    def add(self, texts: Texts) -> Int64s:
        """Return the id of every row's name (int64), storing those that are new."""
        first, inverse = distinct(texts)
        if len(first) > 256 and len(first) > len(inverse) // 2:
            # Names that hardly repeat within a batch repeat even less from batch to batch.
            return (self._append(texts, first) + _PLACED)[inverse]
        data = texts.data.tobytes()
        bounds = zip(texts.starts[first].tolist(), texts.ends[first].tolist(), strict=True)
        with self._lock:
            ids = [self._one(data[start:end]) for start, end in bounds]
        return np.array(ids, np.int64)[inverse]

    def one(self, name: bytes) -> int:
        """Return the id of one name."""
        with self._lock:
            return self._one(name)

    def _one(self, name: bytes) -> int:
        found = self._known.get(name)
        if found is None:
            stored = name if len(name) <= MAX_NAME_BYTES else cut_name(_decode(name)).encode()
            span = self._bytes.append(stored) << _LENGTH_BITS | len(stored)
            if self._numbered == _NUMBERED or len(name) > MAX_NAME_BYTES:
                return span + _PLACED
            found = self._known[name] = self._numbered
            self._spans[found] = span
            self._numbered += 1
        return found

    def _append(self, texts: Texts, rows: Int64s) -> Int64s:
        """Store the names of `rows` without looking for them; return where and how long they are."""
        starts = texts.starts[rows]
        lengths = texts.ends[rows] - starts
        kept = np.where(lengths > MAX_NAME_BYTES, 0, lengths)
        ends = np.cumsum(kept)
        at = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - kept), kept)
        base = self._bytes.append(texts.data[at].tobytes())
        spans = (ends - kept + base) << _LENGTH_BITS | kept
        for i in np.flatnonzero(lengths > MAX_NAME_BYTES).tolist():
            long = cut_name(_decode(_bytes(texts, int(rows[i])))).encode()
            spans[i] = self._bytes.append(long) << _LENGTH_BITS | len(long)
        return spans

    def settle(self, ids: Int64s) -> Int64s:
        """Return ids of the same names that lie in the order they are asked for, for a sorted run.

        A stretch of the run then finds its names in one place, not each in another one.
        """
        if not len(ids) or int(ids.max()) < _PLACED:
            return ids
        placed = np.flatnonzero(ids >= _PLACED)
        steps = np.diff(ids[placed])
        used, first, inverse = np.unique(ids[placed], return_index=True, return_inverse=True)
        spans = used - _PLACED
        starts, lengths = spans >> _LENGTH_BITS, spans & _LENGTH_MASK
        base, size = int(starts[0]), int((starts + lengths).max() - starts[0])
        if size > _SETTLED_BYTES or (steps >= 0).all():
            return ids
        texts = Texts(
            starts - base, starts + lengths - base, np.frombuffer(self._bytes.read(base, size), np.uint8)
        )
        order = np.argsort(first)
        moved = np.empty(len(used), np.int64)
        moved[order] = self._append(texts, order) + _PLACED
        settled = ids.copy()
        settled[placed] = moved[inverse]
        return settled

    def text(self, name: int) -> str:
        """Return one name."""
        return self._fetch(np.array([name], np.int64))[0]

    def coded(self, ids: Int64s) -> tuple[Int64s, list[str]]:
        """Return an int64 index a row, and the names it points into.

        The same names come in the same order, whichever thread was the first to store them.
        """
        if len(ids) and int(ids.max()) < self._fixed:
            flags = np.zeros(self._fixed, bool)
            flags[ids] = True
            used = np.flatnonzero(flags)
            codes = np.empty(self._fixed, np.int64)
            codes[used] = np.arange(len(used))
            return codes[ids], self._fetch(used)
        used = np.unique(ids)
        texts = self._fetch(used)
        table = sorted(set(texts))
        place = {name: i for i, name in enumerate(table)}
        sorted_codes = np.fromiter((place[name] for name in texts), np.int64, len(texts))
        return sorted_codes[np.searchsorted(used, ids)], table

    def _fetch(self, ids: Int64s) -> list[str]:
        """Return the names of ids (ascending, no two equal) as they may stand in a batch."""
        kept = self._kept
        known = ids.tolist()
        missing = [name for name in known if name not in kept]
        if not missing:
            return [kept[name] for name in known]
        wanted = np.array(missing, np.int64)
        spans = np.where(wanted < _PLACED, self._spans[np.minimum(wanted, _NUMBERED - 1)], wanted - _PLACED)
        found = dict(zip(missing, self._read(spans), strict=True))
        for name, text in found.items():
            if name >= _NUMBERED or self._kept_bytes > _KEPT_BYTES:
                break
            kept[name] = text
            self._kept_bytes += len(text)
        return [kept[name] if name in kept else found[name] for name in known]

    def _read(self, spans: Int64s) -> list[str]:
        """Return the names at places in the row of bytes, those close together read at once."""
        order = np.argsort(spans, kind="stable")
        starts = spans[order] >> _LENGTH_BITS
        ends = starts + (spans[order] & _LENGTH_MASK)
        cuts = np.flatnonzero(starts[1:] > ends[:-1] + _GAP) + 1
        low = starts[np.concatenate([[0], cuts])]
        sizes = ends[np.concatenate([cuts - 1, [len(ends) - 1]])] - low
        data = b"".join(map(self._bytes.read, low.tolist(), sizes.tolist()))
        # Where a stretch lies in `data`, less where it lay in the whole row of bytes.
        moved = np.repeat(np.cumsum(sizes) - sizes - low, np.diff(np.concatenate([[0], cuts, [len(ends)]])))
        bounds = np.empty((len(order), 2), np.int64)
        bounds[order, 0] = starts + moved
        bounds[order, 1] = ends + moved
        if data.isascii():
            text = data.decode("ascii")
            return [text[start:end] for start, end in bounds.tolist()]
        return [_decode(data[start:end]) for start, end in bounds.tolist()]


class StringTable:
    """The ids of a capture's own table of strings (nsys `StringIds`), as ids of `Names`."""

    def __init__(self, keys: Int64s, ids: Int64s) -> None:
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._ids = ids[order]
        self._low = int(self._keys[0]) if len(keys) else 0
        self._dense: Int64s | None = None
        span = int(self._keys[-1]) - self._low + 1 if len(keys) else 0
        if 0 < span <= 4 * len(keys) + 1024:
            self._dense = np.full(span, -1, np.int64)
            self._dense[self._keys - self._low] = self._ids

    def look_up(self, keys: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return the name id of each key (EMPTY if unknown) and whether it is unknown."""
        if self._dense is not None:
            # Wraps for keys far away, which the bounds then refuse.
            place = keys - np.int64(self._low)
            outside = (place < 0) | (place >= len(self._dense)) | (keys < self._low)
            found = self._dense[np.where(outside, 0, place)]
            unknown = outside | (found < 0)
        elif len(self._keys):
            place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            found = self._ids[place]
            unknown = self._keys[place] != keys
        else:
            return np.full(len(keys), EMPTY, np.int64), np.ones(len(keys), bool)
        return np.where(unknown, np.int64(EMPTY), found), unknown


def distinct(texts: Texts) -> tuple[Int64s, Int64s]:
    """Return (rows, inverse): a row for each different text, and for each row which of them it is.

    Texts are hashed eight bytes at a time, all rows together, and then compared with the one that
    stands for them, so that no two are ever taken for the same by chance.
    """
    starts, lengths = texts.starts, texts.ends - texts.starts
    padded = np.zeros(len(texts.data) + 8, np.uint8)
    padded[: len(texts.data)] = texts.data
    words: npt.NDArray[np.uint64] = np.ndarray((len(padded) - 7,), "<u8", padded.data, strides=(1,))
    hashes = lengths.astype(np.uint64) * _MULTIPLIERS[0]
    for rows, offset, mask in _steps(lengths):
        mixed = (hashes[rows] ^ (words[starts[rows] + offset] & mask)) * _MULTIPLIERS[1]
        hashes[rows] = mixed ^ (mixed >> np.uint64(29))
    long = np.flatnonzero(lengths > _LONG).tolist()
    for row in long:
        digest = hashlib.blake2b(_bytes(texts, row), digest_size=8).digest()
        hashes[row] = int.from_bytes(digest, "little")
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    like = first[inverse]
    same = bool((lengths == lengths[like]).all()) and all(
        _bytes(texts, row) == _bytes(texts, int(like[row])) for row in long
    )
    for rows, offset, mask in _steps(lengths) if same else ():
        differs = words[starts[rows] + offset] ^ words[starts[like[rows]] + offset]
        same = same and not (differs & mask).any()
    return (first.astype(np.int64), inverse.astype(np.int64)) if same else _distinct_slowly(texts)


def _steps(lengths: Int64s) -> Iterator[tuple[Int64s, int, npt.NDArray[np.uint64]]]:
    """Yield, eight bytes after eight bytes, the rows that go on so far and the bits that are theirs."""
    rows = np.flatnonzero((lengths <= _LONG) & (lengths > 0))
    offset = 0
    while len(rows):
        left = lengths[rows] - offset
        yield rows, offset, _TAILS[np.minimum(left, 8)]
        rows = rows[left > 8]
        offset += 8


def _distinct_slowly(texts: Texts) -> tuple[Int64s, Int64s]:
    seen: dict[bytes, int] = {}
    first: list[int] = []
    inverse = np.zeros(len(texts.starts), np.int64)
    for row in range(len(inverse)):
        place = seen.setdefault(_bytes(texts, row), len(first))
        if place == len(first):
            first.append(row)
        inverse[row] = place
    return np.array(first, np.int64), inverse


def _bytes(texts: Texts, row: int) -> bytes:
    return texts.data[int(texts.starts[row]) : int(texts.ends[row])].tobytes()


def _decode(name: bytes) -> str:
    text = name.decode("utf-8", "backslashreplace")
    return cut_name(text) if len(text) > MAX_NAME_BYTES // 4 else text
