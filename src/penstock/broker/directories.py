"""The directories of partitions: opened and removed, on a thread. What all partitions of a broker share is here."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.broker.bell import Bell
from penstock.broker.disk import Disk
from penstock.broker.frame_cache import FrameCache
from penstock.broker.partition import Partition, open_logs
from penstock.broker.producers import ProducerShares
from penstock.broker.recollection import Recollection
from penstock.broker.settings import TopicSettings
from penstock.broker.work import Work
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.limits import Limits
from penstock.storage.cache import SegmentCache
from penstock.storage.files import Files
from penstock.storage.log import Log, LogSettings


class Directories:
    def __init__(
        self,
        directory: Files,
        work: Work,
        *,
        clock: Clock,
        disk: Disk,
        frames: FrameCache,
        limits: Limits,
        new_id: Callable[[], bytes],
        log_settings: LogSettings | None,
    ) -> None:
        self._directory = directory
        self._work = work
        self._clock = clock
        self._disk = disk
        self._frames = frames
        self._limits = limits
        self._new_id = new_id
        self._log_settings = log_settings
        self._cache = SegmentCache()
        self._producers = ProducerShares(now=lambda: clock.monotonic_us() / 1e6)

    def open(self, identities: Iterable[str], bell: Bell, settings: TopicSettings) -> list[Partition]:
        """All of them, or none."""
        opened: list[Partition] = []
        try:
            for identity in identities:
                opened.append(self._open(identity, bell, settings))
        except PenstockError:
            for partition in opened:
                partition.close()
            raise
        return opened

    def _open(self, identity: str, bell: Bell, settings: TopicSettings) -> Partition:
        return Partition.open(
            self._directory.directory(identity),
            clock=self._clock,
            disk=self._disk,
            loop=self._work.loop,
            cache=self._cache,
            new_id=self._new_id,
            limits=self._limits,
            bell=bell,
            frames=self._frames,
            failed=self._work.could_not_write,
            producers=self._producers,
            sync_within_us=settings.sync_within_us,
            settings=self._log_settings,
        )

    def names(self) -> list[str]:
        """The ids of all partitions that have one, open or not."""
        return sorted(self._directory.directories())

    def has(self, identity: str) -> bool:
        return self._directory.has_directory(identity)

    def logs(self, identity: str) -> tuple[Log, Log]:
        """Messages and deliveries of a partition that is replicated: they are there whoever leads it."""
        return open_logs(
            self._directory.directory(identity),
            clock=self._clock,
            cache=self._cache,
            new_id=self._new_id,
            settings=self._log_settings,
        )

    def over(
        self, logs: tuple[Log, Log], bell: Bell, wrote: Callable[[int], None], recollection: Recollection | None = None
    ) -> Partition:
        """A partition that is led here, over its logs."""
        return Partition(
            *logs,
            clock=self._clock,
            disk=self._disk,
            loop=self._work.loop,
            new_id=self._new_id,
            limits=self._limits,
            bell=bell,
            frames=self._frames,
            failed=self._work.could_not_write,
            wrote=wrote,
            recollection=recollection,
            producers=self._producers,
        )

    def remove(self, identity: str) -> None:
        if self._directory.has_directory(identity):
            self._directory.remove_directory(identity)
            self._directory.sync()
