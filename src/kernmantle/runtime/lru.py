"""The bounded cache behind every table of plans, kernels and calls: least recently used entries leave one by one."""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")
_CACHES: WeakSet[LRUCache[Any, Any]] = WeakSet()
_CACHES_LOCK = threading.RLock()
_STAMP, _VALUE, _KEY = range(3)


class LRUCache(Generic[K, V]):
    """Mapping of at most ``capacity`` entries, safe to share between threads.

    A hit reads a plain dict without a lock, hashes its key once and stamps the entry, about 0.1 us. Writers hold a
    lock. They pop the least recent stamps off a heap, where an entry that was hit since it was pushed is pushed anew:
    the order is exact and an eviction costs O(log n) for each hit before it.

    Parameters
    ----------
    capacity : int
        Most entries, at least 1.
    clearable : bool
        Whether ``clear_all`` empties it; ``clears`` counts how often that was done.
    on_evict : callable, optional
        Called as ``on_evict(key, value)``, without the lock, for every entry that is evicted, replaced or cleared.
        It must not invalidate the value, which a reader may still use.
    """

    def __init__(self, capacity: int, clearable: bool = True, on_evict: Callable[[K, V], object] | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"a cache needs a capacity of at least 1, got {capacity}")
        self.capacity, self.clearable = capacity, clearable
        self._on_evict = on_evict
        self._entries: dict[K, list[Any]] = {}
        self._heap: list[tuple[int, list[Any]]] = []
        self._now = count().__next__
        self.clears = 0
        self._lock = threading.RLock()
        with _CACHES_LOCK:
            _CACHES.add(self)

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: D) -> V | D: ...

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key and make it the most recent, or return ``default`` on a miss."""
        entry = self._entries.get(key)
        if entry is None:
            return default
        entry[_STAMP] = self._now()
        return entry[_VALUE]

    def __setitem__(self, key: K, value: V) -> None:
        """Store a value in place of the key's earlier one, and evict entries beyond the capacity."""
        with self._lock:
            replaced = self._entries.get(key)
            self._insert(key, value)
            gone = self._excess()
        self._report([replaced, *gone] if replaced is not None else gone)

    def setdefault(self, key: K, value: V) -> V:
        """Return the value that the key has, or store this one; racing threads all get the same."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry[_STAMP] = self._now()
                return entry[_VALUE]
            self._insert(key, value)
            gone = self._excess()
        self._report(gone)
        return value

    def clear(self) -> None:
        """Remove every entry."""
        with self._lock:
            gone = list(self._entries.values())
            self._entries.clear()
            self._heap.clear()
            self.clears += 1
        self._report(gone)

    def values(self) -> list[V]:
        """Return the values at this moment, without making them recent."""
        with self._lock:
            return [entry[_VALUE] for entry in self._entries.values()]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys at this moment."""
        with self._lock:
            return iter(list(self._entries))

    def renew_lock(self) -> None:
        """Replace the lock in a forked process, where the thread that held it does not exist."""
        self._lock = threading.RLock()
        self._rebuild()

    def _insert(self, key: K, value: V) -> None:
        entry: list[Any] = [self._now(), value, key]
        self._entries[key] = entry
        heapq.heappush(self._heap, (entry[_STAMP], entry))

    def _excess(self) -> list[list[Any]]:
        """Remove the least recent entries until the rest fits, and return them."""
        gone: list[list[Any]] = []
        while len(self._entries) > self.capacity:
            stamp, entry = heapq.heappop(self._heap)
            if self._entries.get(entry[_KEY]) is not entry:
                continue
            if entry[_STAMP] != stamp:
                heapq.heappush(self._heap, (entry[_STAMP], entry))
                continue
            del self._entries[entry[_KEY]]
            gone.append(entry)
        if len(self._heap) > 2 * self.capacity + 16:  # of replaced entries
            self._rebuild()
        return gone

    def _rebuild(self) -> None:
        self._heap = [(entry[_STAMP], entry) for entry in self._entries.values()]
        heapq.heapify(self._heap)

    def _report(self, gone: list[list[Any]]) -> None:
        if self._on_evict is not None:
            for entry in gone:
                self._on_evict(entry[_KEY], entry[_VALUE])


def caches() -> list[LRUCache[Any, Any]]:
    """Return every cache of the process that is still referenced."""
    with _CACHES_LOCK:
        return list(_CACHES)


def clear_all() -> None:
    """Empty every clearable cache of the process."""
    for cache in caches():
        if cache.clearable:
            cache.clear()


def _in_child() -> None:
    _CACHES_LOCK.release()
    for cache in caches():
        cache.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_CACHES_LOCK.acquire, after_in_parent=_CACHES_LOCK.release, after_in_child=_in_child)
