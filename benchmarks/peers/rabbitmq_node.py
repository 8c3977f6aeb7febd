"""A node of RabbitMQ by itself: its ports, data, settings, plugins and cookie are its own, and so is its epmd.

The script that Debian puts into the path insists on the system's node and its user; the one behind it does not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from peers.serving import accepts, free_port, running

NAME = "RabbitMQ"
READY_S_MAX = 60.0
_PLACES = "/usr/lib/rabbitmq/bin"


def missing() -> str | None:
    if _server() is None or shutil.which("epmd") is None:
        return "rabbitmq-server (apt-get install rabbitmq-server)"
    return None


def described() -> str:
    """The version, out of where the script lies: to ask for it takes a second."""
    found = _server()
    assert found is not None
    place = Path(found).resolve().parent.parent.name
    return f"rabbitmq-server {place.removeprefix('rabbitmq_server-')}, one node"


def _server() -> str | None:
    return shutil.which("rabbitmq-server", path=_PLACES) or shutil.which("rabbitmq-server")


@contextlib.contextmanager
def node(path: Path) -> Iterator[str]:
    """Its address, for `ports`: both kinds of queues are in the same node."""
    server = _server()
    assert server is not None
    amqp, stream, between_nodes, names = (free_port() for _ in range(4))
    settings, plugins, nothing = path / "rabbitmq.conf", path / "enabled_plugins", path / "rabbitmq-env.conf"
    settings.write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp}\n"
        f"stream.listeners.tcp.1 = 127.0.0.1:{stream}\n"
        "stream.advertised_host = 127.0.0.1\n"
        f"stream.advertised_port = {stream}\n"
    )
    plugins.write_text("[rabbitmq_stream].\n")
    nothing.write_text("")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(path),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_NODENAME": f"bench-{amqp}@localhost",
        "RABBITMQ_DIST_PORT": str(between_nodes),
        "RABBITMQ_MNESIA_BASE": str(path / "mnesia"),
        "RABBITMQ_LOG_BASE": str(path / "log"),
        "RABBITMQ_CONFIG_FILE": str(settings),
        "RABBITMQ_CONF_ENV_FILE": str(nothing),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        # The script becomes the server then, rather than its parent: it is killed itself.
        "RUNNING_UNDER_SYSTEMD": "yes",
    }
    # An epmd that is there is used; otherwise the node would start one that outlives it.
    with (
        running(["epmd", "-port", str(names)], lambda: accepts(names), environment=environment),
        running(
            [server],
            lambda: accepts(amqp) and accepts(stream),
            environment=environment,
            ready_s_max=READY_S_MAX,
        ),
    ):
        yield f"{amqp}/{stream}"


def ports(address: str) -> tuple[int, int]:
    """Of AMQP and of streams."""
    amqp, stream = address.split("/")
    return int(amqp), int(stream)
