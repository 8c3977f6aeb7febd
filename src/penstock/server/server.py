"""One process, one data directory, its doors: from the start to a graceful end.

At the end nothing new is taken, what was asked is answered, consumers are told goodbye, and the broker is closed with a
snapshot, so that the next start has nothing to replay. A storage error ends it too, with a failure: nothing is guessed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.errors import Fatal, InvalidSetting, PenstockError
from penstock.limits import DEFAULT_LIMITS
from penstock.local.transport import LocalTransport
from penstock.server.audit import Audit, AuditTopic
from penstock.server.config import DOORS, Address, Config
from penstock.server.gate import Gate
from penstock.server.host import Host
from penstock.server.metrics import Counts
from penstock.server.metrics_access import of_access
from penstock.server.native import NativeDoor
from penstock.server.site import Site
from penstock.server.telemetry import Telemetry, sink
from penstock.server.tls import Tls
from penstock.storage.descriptors import raise_descriptor_limit, shares
from penstock.storage.files import DiskFiles, Files

if TYPE_CHECKING:
    from penstock.server.clustered import Clustered

log = logging.getLogger("penstock")

DRAIN_S = 10.0
# If all nodes are being stopped: what waits for followers would wait for nothing.
ALONE_S = 1.0
# Between one look for etcd and the next, before there was any.
ETCD_S = 3.0


class Ready(NamedTuple):
    """Where the doors are, with the ports that were chosen."""

    native: Address | None
    http: Address | None
    grpc: Address | None


class _Stopped(Exception):
    """Before it was ready."""


class Door(Protocol):
    async def close(self) -> None:
        """Answers what was asked, and closes."""


class Server:
    """Made and run on one event loop."""

    def __init__(self, config: Config, host: Host | None = None) -> None:
        self._config = config
        self._host = host or Host()
        self._doors: list[Door] = []
        self._end = asyncio.Event()
        self._failure: PenstockError | None = None
        self._is_ready = False
        self._telemetry: Telemetry | None = None
        self._audit: Audit | None = None

    def stop(self) -> None:
        self._end.set()

    def _broke(self, error: PenstockError) -> None:
        if self._failure is None:
            # Once: until the listeners are closed, every request may report the same failure.
            log.critical("the broker can't go on: %s", error.message, extra={"code": error.code})
            self._failure = error
        self._end.set()

    async def _wait_for_etcd(self, error: PenstockError) -> None:
        """A node that is started while etcd is away joins when it is back."""
        log.warning("waiting for etcd: %s", error.message, extra={"code": error.code})
        try:
            async with asyncio.timeout(ETCD_S):
                await self._end.wait()
        except TimeoutError:
            return
        raise _Stopped

    async def run(self, ready: Callable[[Ready], None] = lambda ready: None) -> None:
        """Until it is stopped. Raises what ended it, if that was not somebody's wish."""
        with suppress(_Stopped):
            await self._run(ready)
        if self._failure is not None:
            raise self._failure

    async def _run(self, ready: Callable[[Ready], None]) -> None:
        config, descriptors_max = _sharing(self._config, self._host.descriptors_max)
        self._config, counts = config, Counts()
        # Before anything is opened: whoever asks for traces shall not find out later that there are none.
        spans = None
        if config.telemetry_endpoint is not None:
            spans = sink(config.telemetry_endpoint, config.telemetry_service_name, counts)
        clustered: Clustered | None = None
        if config.cluster is None:
            site = await LocalTransport.open(
                partial(_alone, config.data, counts.synced, descriptors_max),
                clock=self._host.clock,
                limits=config.limits,
                archive_dir=config.archive_dir,
            )
        else:
            from penstock.server.clustered import open_clustered

            clustered = await open_clustered(
                config, counts, self._broke, self._wait_for_etcd, descriptors_max, self._host
            )
            site = clustered.site
        stop_watching: Callable[[], None] | None = None
        try:
            self._audit = Audit(site, node=config.node_id or "")
            secret = None if clustered is None else clustered.node.secret
            gate = Gate(site, config.access, secret=secret, audit=self._audit, now_s=self._host.stopwatch_s)
            counts.of_access = partial(of_access, gate)
            tls = None if config.tls_cert is None else Tls(config.tls_cert, config.tls_key)
            if spans is not None:
                self._telemetry = Telemetry(site.broker, spans, counts, sample_ratio=config.telemetry_sample_ratio)
                await self._telemetry.start()
            # Native clients know who leads what. Others need not: what they ask for here is forwarded.
            wide: Site = site if clustered is None else clustered.forwarding
            if config.audit_topic:
                self._audit.topic = AuditTopic(wide, self._audit.counts)
            where = Ready(
                await self._open_native(site, gate, counts, tls, clustered),
                await self._open_http(wide, gate, counts, tls),
                await self._open_grpc(wide, gate, counts),
            )
            # From here on: what a start takes (imports among it) holds up no client.
            stop_watching = self._host.watch_stalls(counts.stalls.add)
            if clustered is not None:
                await clustered.join(where)
            watching = asyncio.get_running_loop().create_task(self._watch(site, gate, tls))
            doors = {name: "none" if at is None else str(at) for name, at in where._asdict().items()}
            log.info("ready", extra={"data": config.data, **doors})
            self._is_ready = True
            ready(where)
            await self._end.wait()
            log.info("stopping")
            watching.cancel()
            if clustered is not None and self._failure is None:
                await clustered.node.hand_over()
        finally:
            if stop_watching is not None:
                stop_watching()
            if clustered is not None:
                clustered.node.feeding.end()
            if clustered is not None and self._failure is not None:
                # Others are to lead what was led here, however long somebody waits at a door for an answer.
                await asyncio.gather(clustered.node.leave(), self._close_doors(ALONE_S))
            else:
                is_alone = clustered is not None and clustered.node.is_left_alone
                await self._close_doors(ALONE_S if is_alone else DRAIN_S)
            await self._close_telemetry()
            if self._audit is not None and self._audit.topic is not None:
                await self._audit.topic.close()
            if clustered is not None:
                await clustered.close()
            await self._closed(site)

    async def _open_native(
        self, site: LocalTransport, gate: Gate, counts: Counts, tls: Tls | None, clustered: Clustered | None
    ) -> Address | None:
        if self._config.native is None:
            return None
        feeding = None if clustered is None else clustered.node.feeding
        # Clients hear of it, and ask for the other nodes.
        cluster = "" if clustered is None else clustered.node.id
        door = NativeDoor(
            site,
            gate,
            cluster=cluster,
            counts=counts,
            broke=self._broke,
            feeding=feeding,
            now_s=self._host.stopwatch_s,
        )
        self._doors.append(door)
        with _opening("native", self._config.native):
            port = await door.open(*self._config.native, None if tls is None else tls.context)
        return self._config.native._replace(port=port)

    async def _open_http(self, site: Site, gate: Gate, counts: Counts, tls: Tls | None) -> Address | None:
        if self._config.http is None:
            return None
        from penstock.server.http.door import HttpDoor

        named = (self._config.http.host, self._config.advertise, socket.gethostname())
        hosts = {name.lower() for name in named if name}
        door = HttpDoor(site, gate, counts=counts, broke=self._broke, hosts=hosts)
        self._doors.append(door)
        with _opening("http", self._config.http):
            port = await door.open(*self._config.http, None if tls is None else tls.context)
        return self._config.http._replace(port=port)

    async def _open_grpc(self, site: Site, gate: Gate, counts: Counts) -> Address | None:
        config = self._config
        if config.grpc is None:
            return None
        # It would write to stderr by itself, past our log, what its errors tell us as well.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        # Here and not at the top: it takes a while, and not everybody has this door.
        from penstock.server.grpc.door import GrpcDoor
        from penstock.server.grpc.tls import credentials

        door = GrpcDoor(site, gate, counts=counts, broke=self._broke)
        self._doors.append(door)
        tls = None if config.tls_cert is None else credentials(config.tls_cert, config.tls_key)
        with _opening("grpc", config.grpc):
            port = await door.open(*config.grpc, tls)
        return config.grpc._replace(port=port)

    async def _close_doors(self, patience_s: float = DRAIN_S) -> None:
        try:
            async with asyncio.timeout(patience_s):
                await asyncio.gather(*[door.close() for door in self._doors])
        except TimeoutError:
            log.warning("some requests were not answered within %g s", patience_s)

    async def _close_telemetry(self) -> None:
        try:
            if self._telemetry is not None:
                await self._telemetry.close()
        except Exception:
            # Traces are no reason not to close the broker properly.
            log.exception("the last traces were not told")

    async def _watch(self, site: LocalTransport, gate: Gate, tls: Tls | None) -> None:
        """What time alone does may fail, and nobody may be asking for anything. Keys and certificates may change."""
        while True:
            await asyncio.sleep(0.5)
            try:
                site.check()
            except Fatal as error:
                self._broke(error)
                return
            try:
                await gate.refresh()
                if tls is not None:
                    tls.refresh()
            except Exception:
                # Whatever is in those files, the broker must still be watched.
                log.exception("what has changed could not be taken up")

    async def _closed(self, site: LocalTransport) -> None:
        try:
            await site.close()
        except PenstockError:
            # What failed before fails again; that is the error to be told.
            if self._failure is None:
                raise
        if self._is_ready:
            log.info("stopped")


def _sharing(config: Config, limit: int) -> tuple[Config, int]:
    """With no more connections at a door than there are descriptors for; and how many descriptors are for files."""
    limits = config.limits
    doors = sum(getattr(config, door) is not None for door in DOORS)
    files, connections = shares(limit, doors * limits.connections_max)
    connections = max(connections // doors, 1)
    log.debug("of %d descriptors, %d are for files", limit, files)
    if connections < limits.connections_max:
        log.log(
            logging.DEBUG if limits.connections_max == DEFAULT_LIMITS.connections_max else logging.WARNING,
            "there are %d descriptors: each door takes %d connections, not %d; raise the limit (`ulimit -n`; systemd: "
            "LimitNOFILE=)",
            limit,
            connections,
            limits.connections_max,
        )
        config = replace(config, limits=replace(limits, connections_max=connections))
    return config, files


def _alone(directory: str, synced: Callable[[float], None], descriptors_max: int) -> Files:
    """The data directory of a broker on its own."""
    files = DiskFiles(directory, synced=synced, descriptors_max=descriptors_max)
    if "disk" in files.names():
        files.close()
        raise InvalidSetting(
            f"{directory} is that of a node of a cluster: name the cluster (--cluster), or another directory",
            setting="data",
        )
    return files


@contextmanager
def _opening(door: str, address: Address) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{address} is in use already" if error.errno == errno.EADDRINUSE else str(error)
        told = f"the {door} door can't be opened: {reason}; --{door} names another host:port, or none"
        raise InvalidSetting(told, setting=door) from error


async def serve(config: Config, ready: Callable[[Ready], None] = lambda ready: None) -> None:
    """Until SIGTERM or SIGINT. The process is the server's: it takes as many descriptors as it may have."""
    raise_descriptor_limit()
    server = Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    await server.run(ready)
