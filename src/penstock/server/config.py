"""What a server is told: by a YAML file, by the environment (PENSTOCK_…), by flags; the later one wins.

Names are the same everywhere: `native` in the file, PENSTOCK_NATIVE, --native. Each value knows where it came from, so
that `penstock config show` can tell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from penstock.durations import duration_us
from penstock.errors import InvalidInput, InvalidSetting
from penstock.limits import DEFAULT_LIMITS, Limits

PREFIX = "PENSTOCK_"
# ZooKeeper gives Kafka's brokers 18 s, and its raft 9 s. A leader that dies is replaced a little later than this.
SESSION_TTL_S, SESSION_TTL_S_MIN, SESSION_TTL_S_MAX = 6, 2, 600
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


class Seconds(int):
    """A number of them, as users write it."""

    def __str__(self) -> str:
        return f"{int(self)}s"


class Address(NamedTuple):
    """Where a door is. Port 0: one that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


NATIVE = Address("127.0.0.1", 7420)
HTTP = Address("127.0.0.1", 8080)
GRPC = Address("127.0.0.1", 9000)
DOORS = ("native", "http", "grpc")


# Nobody is shown what these are.
SECRETS = ("etcd_password",)
# Without a cluster they would do nothing, and somebody would think that they did.
_OF_A_NODE = (
    "node_id",
    "rack",
    "advertise",
    "tls_ca",
    "etcd_ca",
    "etcd_cert",
    "etcd_key",
    "etcd_user",
    "etcd_password",
)


@dataclass(frozen=True)
class Config:
    """Doors are host:port, or none for one that is shut. `access` is the file with keys and rules, `tls_cert` and
    `tls_key` are those with a certificate and its key. `audit_topic` stores the audit log in a topic, too. What starts
    with `telemetry_` or `archive_` may be a section in the file. `archive_dir` is where the archive is that readers of
    deleted messages are led to.
    `cluster` are the addresses of etcd's members: then this is the node `node_id` of the cluster `cluster_name`, which
    others reach at the host `advertise`; those of them that have TLS at their doors are known by a certificate of
    `tls_ca`. `session_ttl` is for how many seconds it is taken for alive without a sign of
    it. What starts with `etcd_` is how etcd lets this node in.
    `limits` are those of `limits.py`: names and values in the file, name=value,name=value elsewhere.
    """

    data: str = "data"
    native: Address | None = NATIVE
    http: Address | None = HTTP
    grpc: Address | None = GRPC
    access: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    log_format: str = "text"
    log_level: str = "info"
    audit_topic: bool = False
    insecure: bool = False
    limits: Limits = DEFAULT_LIMITS
    telemetry_endpoint: str | None = None
    telemetry_sample_ratio: float = 0.01
    telemetry_service_name: str = "penstock"
    archive_dir: str | None = None
    cluster: str | None = None
    node_id: str | None = None
    cluster_name: str = "default"
    rack: str | None = None
    advertise: str | None = None
    session_ttl: int = Seconds(SESSION_TTL_S)
    etcd_ca: str | None = None
    etcd_cert: str | None = None
    etcd_key: str | None = None
    etcd_user: str | None = None
    etcd_password: str | None = None

    def check(self) -> None:
        """Open to others only with keys, or if that is meant."""
        for name in DOORS:
            address: Address | None = getattr(self, name)
            is_open = self.access is None and not self.insecure
            if address is not None and not address.is_loopback and is_open:
                raise InvalidSetting(
                    f"{name} is {address}, and without keys everybody who reaches it may do everything. "
                    "Name a file of keys (access), use a loopback address, or say that it is meant (insecure)",
                    setting=name,
                )
        if self.tls_key is not None and self.tls_cert is None:
            raise InvalidSetting("tls_key without tls_cert", setting="tls_key")
        self._check_cluster()
        if all(getattr(self, name) is None for name in DOORS):
            raise InvalidSetting("all doors are shut: native, http and grpc are none", setting="native")

    def _check_cluster(self) -> None:
        if self.cluster is None:
            for name in _OF_A_NODE:
                if getattr(self, name) is not None:
                    raise InvalidSetting(f"{name} is for a node of a cluster, and no cluster is named", setting=name)
            return
        if "@" in self.cluster:
            raise InvalidSetting(
                "cluster has no user and password in it: they are etcd_user and etcd_password", setting="cluster"
            )
        if self.node_id is None:
            raise InvalidSetting("a node of a cluster has a name of its own: --node-id", setting="node_id")
        if self.native is None:
            raise InvalidSetting("nodes of a cluster reach each other at their native doors", setting="native")


class Value(NamedTuple):
    """One setting, and who said so: "default", a file, a variable, or a flag."""

    name: str
    value: Any
    source: str


NAMES = tuple(field.name for field in fields(Config))


def load(
    file: str | os.PathLike[str] | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> tuple[Config, list[Value]]:
    """`flags` are those that were given. Unknown names are refused wherever they are."""
    found = {name: Value(name, getattr(Config(), name), "default") for name in NAMES}
    if file is not None:
        for name, given in _read(file).items():
            found[name] = Value(name, _value(name, given), os.fspath(file))
    for variable, given in environment.items():
        name = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and name in NAMES:
            found[name] = Value(name, _value(name, given), variable)
    for name, given in flags.items():
        found[name] = Value(name, _value(name, given), "--" + name.replace("_", "-"))
    config = Config(**{name: value.value for name, value in found.items()})
    config.check()
    return config, list(found.values())


def _read(file: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSetting(f"the configuration {os.fspath(file)} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidSetting(
            f"the configuration {os.fspath(file)} is not YAML: {' '.join(str(error).split())}"
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSetting(
            f"the configuration {os.fspath(file)} must be names and values, not a {type(content).__name__}"
        )
    content = _without_sections(content)
    for name in content:
        if name not in NAMES:
            raise InvalidSetting(
                f"the configuration {os.fspath(file)} has no setting {name!r}; there are {', '.join(NAMES)}",
                setting=str(name),
            )
    return content


_SECTIONS = {"telemetry": "endpoint, sample_ratio and service_name", "archive": "dir"}


def _without_sections(content: dict[Any, Any]) -> dict[Any, Any]:
    """`telemetry: {endpoint: …}` says the same as `telemetry_endpoint: …`."""
    for name, parts in _SECTIONS.items():
        section = content.pop(name, None) or {}
        if not isinstance(section, dict):
            raise InvalidSetting(f"{name} has {parts}, not {section!r}")
        content |= {f"{name}_{part}": value for part, value in section.items()}
    return content


_KINDS = {"cluster": "one or more addresses of etcd", "data": "a directory", "archive_dir": "a directory or a URI"}


def _value(name: str, given: Any) -> Any:
    match name:
        case "native" | "http" | "grpc":
            return _address(name, given)
        case "session_ttl":
            return _session_ttl(given)
        case "insecure" | "audit_topic":
            return _flag(name, given)
        case "limits":
            return _limits(given)
        case "log_format":
            return _one_of(name, given, LOG_FORMATS)
        case "log_level":
            return _one_of(name, given, LOG_LEVELS)
        case "telemetry_endpoint":
            return _url(name, given)
        case "telemetry_sample_ratio":
            return _ratio(name, given)
        case "etcd_password":
            if not isinstance(given, str) or not given:
                raise InvalidSetting(f"{name} is a text; a number is one in quotes", setting=name)
            return given
        case "telemetry_service_name" | "node_id" | "cluster_name" | "rack" | "advertise" | "etcd_user":
            if not isinstance(given, str) or not given:
                raise InvalidSetting(f"{name} is a name, not {given!r}", setting=name)
            return given
        case _:
            if not isinstance(given, str) or not given:
                what = _KINDS.get(name, "a file")
                raise InvalidSetting(f"{name} is {what}, not {given!r}", setting=name)
            if name == "archive_dir":
                _check_no_secret(given)
            return given


def _check_no_secret(uri: str) -> None:
    """Everybody who may read one topic is told where the archive is."""
    scheme, _, rest = uri.partition("://")
    place, _, query = rest.partition("?")
    has_password = ":" in place.rpartition("@")[0]
    if rest and (has_password or any(word in query.lower() for word in ("secret", "token", "key=", "sas", "password"))):
        raise InvalidSetting(
            f"archive_dir ({scheme}://…) has a secret in it, and readers of topics are told where the archive is: "
            "leave it out, and use the environment of the server: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            setting="archive_dir",
        )


def _address(name: str, given: Any) -> Address | None:
    # YAML reads a bare none as text and null as nothing; both mean it.
    if given is None or given == "none":
        return None
    host, colon, port = str(given).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536
    if not colon or not host or not is_port or (":" in host and not str(given).startswith("[")):
        raise InvalidSetting(f"{name} is host:port or none, not {given!r}", setting=name)
    return Address(host, int(port))


def _url(name: str, given: Any) -> str | None:
    if given is None or given == "none":
        return None
    try:
        parts = urlsplit(given) if isinstance(given, str) else urlsplit("")
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSetting(f"{name} is http://host:port or https://host:port, not {given!r}", setting=name)
    return str(given)


def _ratio(name: str, given: Any) -> float:
    try:
        ratio = float(given)
    except (TypeError, ValueError):
        ratio = -1.0
    # Below that one of a billion messages would be traced.
    if isinstance(given, bool) or not 1e-9 <= ratio <= 1.0:
        raise InvalidSetting(f"{name} is more than 0 and at most 1, not {given!r}", setting=name)
    return ratio


def _session_ttl(given: Any) -> Seconds:
    """In whole seconds, as etcd has it. It makes less than 2 of them into 2; and nodes hear of each other once a
    second."""
    try:
        us = duration_us(given)
    except InvalidInput as error:
        raise InvalidSetting(f"session_ttl: {error.message}", setting="session_ttl") from error
    if us % 1_000_000 or not SESSION_TTL_S_MIN <= us // 1_000_000 <= SESSION_TTL_S_MAX:
        raise InvalidSetting(
            f"session_ttl is {SESSION_TTL_S_MIN}s to {SESSION_TTL_S_MAX}s, in whole seconds, not {given!r}",
            setting="session_ttl",
        )
    return Seconds(us // 1_000_000)


def _flag(name: str, given: Any) -> bool:
    text = str(given).lower()
    if text not in ("true", "false", "1", "0", "yes", "no"):
        raise InvalidSetting(f"{name} is true or false, not {given!r}", setting=name)
    return text in ("true", "1", "yes")


def _one_of(name: str, given: Any, known: tuple[str, ...]) -> str:
    if given not in known:
        raise InvalidSetting(f"{name} is {' or '.join(known)}, not {given!r}", setting=name)
    return str(given)


# What they are called here, and in `Limits`: a duration is written with its unit, as in 5s, and needs none in its name.
LIMITS = {field.name.removesuffix("_us"): field.name for field in fields(Limits)}


def _limits(given: Any) -> Limits:
    if isinstance(given, str):
        pairs = [part.partition("=") for part in given.split(",")]
        if not all(equals for _, equals, _ in pairs) or len({name for name, _, _ in pairs}) < len(pairs):
            raise InvalidSetting(f"limits are name=value,name=value, not {given!r}", setting="limits")
        given = {name.strip(): value.strip() for name, _, value in pairs}
    if not isinstance(given, dict):
        raise InvalidSetting(f"limits are names and values, not {given!r}", setting="limits")
    for name in given:
        if name not in LIMITS:
            raise InvalidSetting(f"there is no limit {name!r}; there are {', '.join(LIMITS)}", setting="limits")
    try:
        limits = Limits(**{LIMITS[name]: _limit(name, value) for name, value in given.items()})
    except InvalidInput as error:
        raise InvalidSetting(f"limits: {error.message}", setting="limits") from error
    # A message is never cut in two, and is written with others.
    if 2 * (limits.message_bytes_max + limits.header_bytes_max) > limits.frame_bytes_max:
        raise InvalidSetting(
            "limits: frame_bytes_max is at least twice message_bytes_max and header_bytes_max together",
            setting="limits",
        )
    return limits


def _limit(name: str, given: Any) -> int:
    if LIMITS[name] != name:
        return duration_us(given)
    text = str(given)
    if isinstance(given, bool) or not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidInput(f"{name} is a whole number, not {given!r}")
    return int(text)
