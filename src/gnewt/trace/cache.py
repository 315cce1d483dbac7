"""The cache of structures: by the content of programs, least recently used first out.

Programs are looked up by what their calls look like from outside (`recall`), before their content is compared.

An entry owns its structure, and the structure owns its plans, systems and compiled functions (`Structure.memo`): what
leaves the cache is freed as soon as nobody else holds it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar, cast

from jax.typing import ArrayLike

from gnewt.trace.entry import Entry, Found

MOST_STRUCTURES = 64
"""Structures that are kept, of all functions together. One takes a few megabytes with its compiled functions."""


MOST_READINGS = 4
"""Programs that are remembered of calls that look alike."""
R = TypeVar("R")
X = TypeVar("X", bound=Hashable)


class Make(Protocol):
    """Makes an entry where there is none."""

    def __call__(self) -> Entry: ...


class StructureCache(Generic[R]):
    """Entries by key; several for one key, where captured values shape the structure (indices, zeros)."""

    def __init__(self, bound: int = MOST_STRUCTURES) -> None:
        self.bound = bound
        self._entries: dict[Hashable, list[Entry]] = {}
        self._recent: OrderedDict[Entry, Hashable] = OrderedDict()
        self._readings: dict[Hashable, list[tuple[Hashable, R]]] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._recent)

    def find(self, key: Hashable, captured: list[ArrayLike], make: Make) -> Found:
        """Return the structure of a key whose watched values are those captured now; make it where there is none."""
        with self._lock:
            for entry in self._entries.get(key, ()):
                found = entry.find(captured)
                if found is not None:
                    self._recent.move_to_end(entry)
                    return found
            entry = make()
            found = entry.find(captured)
            assert found is not None
            self._entries.setdefault(key, []).append(entry)
            self._recent[entry] = key
            while len(self._recent) > self.bound:
                self._drop(next(iter(self._recent)))
            return found

    def recall(self, signature: Hashable) -> list[R]:
        """Return what was remembered of calls that look alike, the last one first."""
        return [reading for _, reading in self._readings.get(signature, ())]

    def remember(self, signature: Hashable, key: Hashable, reading: R) -> None:
        """Keep what was read at a call, as long as there are structures of its key."""
        with self._lock:
            if key in self._entries:
                before = [r for r in self._readings.get(signature, ()) if r[0] != key]
                self._readings[signature] = [(key, reading), *before[: MOST_READINGS - 1]]

    def kept(self, key: X) -> X:
        """Return the key itself under which structures are kept: to find it again, nothing need be compared."""
        with self._lock:
            entries = self._entries.get(key)
            return cast(X, self._recent[entries[0]]) if entries else key

    def _drop(self, entry: Entry) -> None:
        key = self._recent.pop(entry)
        left = self._entries[key]
        left.remove(entry)
        if not left:
            del self._entries[key]
            for signature, readings in list(self._readings.items()):
                self._readings[signature] = [r for r in readings if r[0] != key]
                if not self._readings[signature]:
                    del self._readings[signature]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._recent.clear()
            self._readings.clear()


structures = StructureCache()
"""Of all functions of this process."""


def clear_cache() -> None:
    """Forget all structures, with their plans and compiled functions; the next call of each function makes them anew.

    At most 64 structures are kept, the least recently used ones are dropped first. What results and compiled functions
    of the user still hold is freed with them.
    """
    structures.clear()
