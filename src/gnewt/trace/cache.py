"""The cache of structures: by the content of programs, least recently used first out.

An entry owns its structure, and the structure owns its plans, systems and compiled functions (`Structure.memo`): what
leaves the cache is freed as soon as nobody else holds it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol

from jax.typing import ArrayLike

from gnewt.trace.entry import Entry, Found

MOST_STRUCTURES = 64
"""Structures that are kept, of all functions together. One takes a few megabytes with its compiled functions."""


class Make(Protocol):
    """Makes an entry where there is none."""

    def __call__(self) -> Entry: ...


class StructureCache:
    """Entries by key; several for one key, where captured values shape the structure (indices, zeros)."""

    def __init__(self, bound: int = MOST_STRUCTURES) -> None:
        self.bound = bound
        self._entries: dict[Hashable, list[Entry]] = {}
        self._recent: OrderedDict[Entry, Hashable] = OrderedDict()
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

    def _drop(self, entry: Entry) -> None:
        key = self._recent.pop(entry)
        left = self._entries[key]
        left.remove(entry)
        if not left:
            del self._entries[key]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._recent.clear()


structures = StructureCache()
"""Of all functions of this process."""


def clear_cache() -> None:
    """Forget all structures, with their plans and compiled functions; the next call of each function makes them anew.

    At most 64 structures are kept, the least recently used ones are dropped first. What results and compiled functions
    of the user still hold is freed with them.
    """
    structures.clear()
