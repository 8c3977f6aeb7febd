"""Stand-ins for time and disk, shipped so that users' tests can have them too.

    clock          ManualClock: time that moves when told
    memory_files   MemoryDisk, MemoryFiles: a disk in memory that knows what a power loss may leave of it
    faulty_files   FaultyFiles: any disk, with faults at chosen operations

Each passes the same suite as the real thing (`tests/contracts`).
"""

from penstock.testing.clock import ManualClock
from penstock.testing.faulty_files import Fault, FaultyFiles, Operation
from penstock.testing.memory_files import MemoryDisk, MemoryFiles

__all__ = ["Fault", "FaultyFiles", "ManualClock", "MemoryDisk", "MemoryFiles", "Operation"]
