"""A network of its own for the processes of a test, in which packets can be dropped from one of them to another.

    test ── 10.77.N.1 ─┐
    node a ─ 10.77.N.10 ┤
    node b ─ 10.77.N.14 ┼─ router: a rule for each pair that is cut, which drops what it forwards without a word
    etcd ── 10.77.N.22 ─┘

Each host is a network namespace with a link to the router. A cut has a direction. Nobody is told of it: connections
stay as they are, and what is sent is lost, as by a switch that died.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

_NETWORKS = range(1, 250)
# Four addresses for each link: one of the host, one of the router.
_LINKS_MAX = 60
_PROBE_S, _TIMED_OUT = 0.3, 124


def ip(*words: str, namespace: str | None = None) -> None:
    inside = ("ip", "netns", "exec", namespace) if namespace else ()
    subprocess.run([*inside, "ip", *words], check=True, capture_output=True, text=True)


def why_not() -> str | None:
    """What keeps this machine from having such a network, if anything does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (Debian: iproute2)"
    try:
        with network(["probe"]) as made:
            made.cut("probe", "test")
    except subprocess.CalledProcessError as error:
        return f"network namespaces do not work here: {error.stderr.strip()}"
    return None


class Network:
    """Made by `network`."""

    def __init__(self, number: int, hosts: Iterable[str]) -> None:
        self._number = number
        self._name = f"penstock{number}"
        self._router = f"{self._name}-r"
        self.hosts = ["test", *hosts]
        assert len(self.hosts) <= _LINKS_MAX
        # Faults come and go by several threads.
        self._lock = Lock()
        self._cuts: set[tuple[str, str]] = set()

    def address(self, host: str) -> str:
        return f"10.77.{self._number}.{4 * self.hosts.index(host) + 2}"

    def _gateway(self, host: str) -> str:
        return f"10.77.{self._number}.{4 * self.hosts.index(host) + 1}"

    def namespace(self, host: str) -> str | None:
        return None if host == "test" else f"{self._name}-{host}"

    def inside(self, host: str) -> list[str]:
        """What a command begins with that runs there."""
        namespace = self.namespace(host)
        return ["ip", "netns", "exec", namespace] if namespace else []

    def claim(self) -> bool:
        """Whether the number was free, and is ours."""
        try:
            ip("netns", "add", self._router)
        except subprocess.CalledProcessError as error:
            if "File exists" not in error.stderr:
                raise
            return False
        return True

    def build(self) -> None:
        subprocess.run(
            ["ip", "netns", "exec", self._router, "sysctl", "-qw", "net.ipv4.ip_forward=1"],
            check=True,
            capture_output=True,
            text=True,
        )
        for at, host in enumerate(self.hosts):
            namespace = self.namespace(host)
            near, far = f"ps{self._number}h{at}", f"ps{self._number}r{at}"
            if namespace:
                ip("netns", "add", namespace)
                ip("link", "set", "lo", "up", namespace=namespace)
            ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self._router)
            if namespace:
                ip("link", "set", near, "netns", namespace)
            ip("addr", "add", f"{self.address(host)}/30", "dev", near, namespace=namespace)
            ip("link", "set", near, "up", namespace=namespace)
            ip("addr", "add", f"{self._gateway(host)}/30", "dev", far, namespace=self._router)
            ip("link", "set", far, "up", namespace=self._router)
            others = f"10.77.{self._number}.0/24" if host == "test" else "default"
            ip("route", "add", others, "via", self._gateway(host), namespace=namespace)

    def remove(self) -> None:
        # The kernel removes a namespace some time after it is told to, and only then what is linked to it.
        subprocess.run(["ip", "link", "del", f"ps{self._number}h0"], capture_output=True)
        for host in [*self.hosts, "r"]:
            namespace = f"{self._name}-{host}"
            if Path("/run/netns", namespace).exists():
                ip("netns", "del", namespace)

    # --- faults ------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Nothing that the one sends reaches the other any more."""
        with self._lock:
            if (source, target) not in self._cuts:
                self._rule("add", source, target)
                self._cuts.add((source, target))

    def mend(self, source: str, target: str) -> None:
        with self._lock:
            if (source, target) in self._cuts:
                self._rule("del", source, target)
                self._cuts.discard((source, target))

    def mend_all(self) -> None:
        for source, target in list(self._cuts):
            self.mend(source, target)

    def dropped(self, source: str, target: str, port: int) -> bool:
        """Whether what the one sends the other is lost: somebody listens there, and does not hear."""
        attempt = f"exec 3<>/dev/tcp/{self.address(target)}/{port}"
        probe = ["timeout", str(_PROBE_S), "bash", "-c", attempt]
        return subprocess.run([*self.inside(source), *probe], capture_output=True).returncode == _TIMED_OUT

    def _rule(self, verb: str, source: str, target: str) -> None:
        where = ["from", self.address(source), "to", self.address(target)]
        ip("rule", verb, *where, "blackhole", namespace=self._router)


@contextmanager
def network(hosts: Iterable[str]) -> Iterator[Network]:
    """With the first number that is free: tests may run beside each other."""
    for number in _NETWORKS:
        made = Network(number, hosts)
        if not made.claim():
            continue
        try:
            made.build()
            yield made
        finally:
            made.remove()
        return
    raise AssertionError("all numbers of test networks are taken: old ones are left (ip netns list)")
