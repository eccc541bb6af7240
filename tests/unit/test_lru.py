"""The bounded cache: its order against an ordered dict, its hooks, threads and forks."""

import gc
import os
import random
import threading
from collections import OrderedDict

import pytest

from kernmantle.runtime import lru
from kernmantle.runtime.lru import LRUCache


class Model:
    """What a least recently used cache is, one operation after another."""

    def __init__(self, capacity):
        self.capacity, self.entries = capacity, OrderedDict()

    def get(self, key):
        if key in self.entries:
            self.entries.move_to_end(key)
        return self.entries.get(key)

    def set(self, key, value):
        self.entries[key] = value
        self.entries.move_to_end(key)
        while len(self.entries) > self.capacity:
            self.entries.popitem(last=False)


@pytest.mark.parametrize("capacity", [1, 2, 7, 30])
def test_random_operations_leave_what_an_ordered_dict_leaves(capacity):
    draw, cache, model = random.Random(capacity), LRUCache(capacity), Model(capacity)
    for step in range(4000):
        key = draw.randrange(2 * capacity + 1)
        if draw.random() < 0.5:
            assert cache.get(key) == model.get(key)
        elif draw.random() < 0.3:
            expected = model.get(key) if key in model.entries else step
            assert cache.setdefault(key, step) == expected
            model.set(key, expected)
        else:
            cache[key] = step
            model.set(key, step)
        assert set(cache) == set(model.entries)
        assert len(cache) == len(model.entries)
    assert sorted(cache.values()) == sorted(model.entries.values())


def test_one_more_than_fits_evicts_one():
    cache = LRUCache(100)
    for key in range(101):
        cache[key] = key
    assert set(cache) == set(range(1, 101))


def test_every_entry_that_leaves_is_reported_once():
    gone = []
    cache = LRUCache(2, on_evict=lambda key, value: gone.append((key, value)))
    cache["a"], cache["b"] = 1, 2
    assert cache.get("a") == 1
    cache["c"] = 3
    cache["c"] = 4
    assert gone == [("b", 2), ("c", 3)]
    cache.clear()
    assert sorted(gone[2:]) == [("a", 1), ("c", 4)]
    assert len(cache) == 0


def test_a_value_of_none_differs_from_a_miss():
    cache, missing = LRUCache(2), object()
    cache["a"] = None
    assert cache.get("a", missing) is None
    assert cache.get("b", missing) is missing


def test_the_heap_stays_small_when_entries_are_replaced():
    cache = LRUCache(3)
    for step in range(1000):
        cache["a"] = step
    assert len(cache._heap) < 30


def test_a_cache_without_capacity_is_refused():
    with pytest.raises(ValueError, match="capacity"):
        LRUCache(0)


def test_all_caches_are_emptied_together_and_die_with_their_owner():
    first, second = LRUCache(4), LRUCache(4)
    first["a"] = second["b"] = 1
    assert first in lru.caches()
    lru.clear_all()
    assert len(first) == len(second) == 0
    before = len(lru.caches())
    del first
    gc.collect()
    assert len(lru.caches()) < before


def test_threads_read_what_was_written_and_the_bound_holds():
    cache, wrong = LRUCache(50), []

    def work(seed):
        draw = random.Random(seed)
        for _ in range(5000):
            key = draw.randrange(120)
            value = cache.get(key)
            if value is None:
                cache[key] = 7 * key
            elif value != 7 * key:
                wrong.append((key, value))
            if draw.random() < 0.001:
                cache.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(cache) <= 50
    assert len(cache._heap) <= 120


def test_threads_that_race_get_one_value():
    cache, found = LRUCache(4), []
    barrier = threading.Barrier(8)

    def work(own):
        barrier.wait()
        found.append(cache.setdefault("key", own))

    threads = [threading.Thread(target=work, args=(own,)) for own in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_a_thread_writes_leaves_a_cache_that_works():
    cache = LRUCache(2)
    cache["a"] = 1
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with cache._lock:
            entered.set()
            leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait(60)
    child = os.fork()
    if child == 0:
        cache["b"] = cache["c"] = 2
        os._exit(0 if set(cache) == {"b", "c"} else 1)
    leave.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
