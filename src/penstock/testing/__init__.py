"""Stand-ins for time and disk, shipped so that users' tests can have them too.

    clock          ManualClock: time that moves when told
    timers         ManualTimers: waiting that does not wait
    time           ManualTime: the same, with those who wait for it
    fake_etcd      FakeEtcd: the store of a cluster's metadata, in memory
    memory_files   MemoryDisk, MemoryFiles: a disk in memory that knows what a power loss may leave of it
    memory_syncs   MemorySyncs: its syncs, while the event loop goes on
    faulty_files   FaultyFiles: any disk, with faults at chosen operations
    queue          VirtualQueue, VirtualClock: the embedded broker on a disk in memory and with a virtual clock
    plugin         fixtures of these for pytest

The disks, and etcd, pass the same suites as the real ones (`tests/contracts`). Names are imported when they are first
asked for: the plugin is loaded in every run of pytest, also of those who have no use for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.clock import ManualClock
    from penstock.testing.fake_etcd import FakeEtcd
    from penstock.testing.faulty_files import Fault, FaultyFiles, Operation
    from penstock.testing.memory_files import MemoryDisk, MemoryFiles
    from penstock.testing.memory_syncs import MemorySyncs
    from penstock.testing.queue import VirtualClock, VirtualQueue
    from penstock.testing.time import ManualTime
    from penstock.testing.timers import ManualTimers

__all__ = [
    "FakeEtcd",
    "Fault",
    "FaultyFiles",
    "ManualClock",
    "ManualTime",
    "ManualTimers",
    "MemoryDisk",
    "MemoryFiles",
    "MemorySyncs",
    "Operation",
    "VirtualClock",
    "VirtualQueue",
]
_MODULES = {
    "FakeEtcd": "fake_etcd",
    "Fault": "faulty_files",
    "FaultyFiles": "faulty_files",
    "ManualClock": "clock",
    "ManualTime": "time",
    "ManualTimers": "timers",
    "MemoryDisk": "memory_files",
    "MemoryFiles": "memory_files",
    "MemorySyncs": "memory_syncs",
    "Operation": "faulty_files",
    "VirtualClock": "queue",
    "VirtualQueue": "queue",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
