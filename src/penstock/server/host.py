"""What a server gets from the machine it runs on: time, randomness, disks, threads, and the store of metadata."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.environment import Environment
from penstock.server.stalls import StallWatch
from penstock.server.tls import trusting
from penstock.storage.descriptors import descriptor_limit
from penstock.storage.files import DiskFiles, Files
from penstock.storage.kernel_syncs import KernelSyncs, Syncs

if TYPE_CHECKING:
    from penstock.cluster.etcd.settings import EtcdSettings
    from penstock.cluster.etcd.store import Store


class Host(Environment):
    """The real one."""

    @property
    def descriptors_max(self) -> int:
        return descriptor_limit()

    def files(self, path: str, synced: Callable[[float], None], descriptors_max: int) -> Files:
        """The directory, created if it is missing. On a thread."""
        return DiskFiles(path, synced=synced, descriptors_max=descriptors_max)

    def syncs(self) -> Syncs:
        return KernelSyncs()

    def executor(self, threads: int, name: str) -> Executor:
        return ThreadPoolExecutor(threads, thread_name_prefix=name)

    def trust(self, authorities: str | None) -> ssl.SSLContext:
        """For connections to other nodes."""
        return trusting(authorities)

    def metadata(self, settings: EtcdSettings) -> Store:
        from penstock.cluster.etcd.client import EtcdStore

        return EtcdStore(settings)

    def watch_stalls(self, stalled: Callable[[float], None]) -> Callable[[], None]:
        """Until the function that it returns is called."""
        return StallWatch(stalled).close
