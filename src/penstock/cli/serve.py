"""penstock serve, penstock config show."""

from __future__ import annotations

import gc
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.bundles import Bundle, bundled
from penstock.cli.given import flags_given
from penstock.cli.options import OutputOption
from penstock.cli.output import Column, Output, print_one
from penstock.cli.shown import shown_setting
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.server.config import Config, Value

config_app = typer.Typer(no_args_is_help=True, help="The configuration of a server.")


@dataclass(frozen=True)
class Flags(Bundle):
    """What a server is told on its command line. But for `config`, the names are those of its settings."""

    config: Annotated[str | None, typer.Option(metavar="FILE", help="A YAML file with these settings.")] = None
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Where the data is. Default: data.")] = None
    native: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The native door, or none. Default: 127.0.0.1:7420.")
    ] = None
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The HTTP door, or none. Default: 127.0.0.1:8080.")
    ] = None
    grpc: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The gRPC door, or none. Default: 127.0.0.1:9000.")
    ] = None
    access: Annotated[str | None, typer.Option(metavar="FILE", help="The file with keys, rules and quotas.")] = None
    tls_cert: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A certificate in PEM: TLS at every door."),
    ] = None
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its key, if the certificate has it not.")] = None
    tls_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="Whom to trust about other nodes. Default: whom the system does.")
    ] = None
    log_format: Annotated[str | None, typer.Option(metavar="text|json", help="Default: text.")] = None
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="Default: info.")] = None
    audit_topic: Annotated[
        bool | None, typer.Option("--audit-topic", help="Store the audit log in the topic __audit, too.")
    ] = None
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Open to others without keys: everybody may do everything.")
    ] = None
    limits: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE,…", help="Other limits than the defaults, as connections_max=100.")
    ] = None
    telemetry_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="An OTLP collector to send traces to.")
    ] = None
    telemetry_sample_ratio: Annotated[
        str | None,
        typer.Option(metavar="RATIO", help="Of messages. Default: 0.01."),
    ] = None
    telemetry_service_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="In the traces. Default: penstock.")
    ] = None
    archive_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where deleted messages are read from, or a URI.")
    ] = None

    cluster: Annotated[
        str | None, typer.Option(metavar="URL,…", help="etcd, as http://host:2379: be a node of the cluster it holds.")
    ] = None
    node_id: Annotated[str | None, typer.Option(metavar="NAME", help="This node's name in the cluster.")] = None
    cluster_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of several clusters in one etcd. Default: default.")
    ] = None
    rack: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where the node stands: replicas are spread over racks.")
    ] = None
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST", help="Where others reach this node. Default: the doors' own host.")
    ] = None
    session_ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Silent for so long, a node is taken for dead. Default: 6s.")
    ] = None
    etcd_ca: Annotated[str | None, typer.Option(metavar="FILE", help="Whom to trust about etcd's certificate.")] = None
    etcd_cert: Annotated[str | None, typer.Option(metavar="FILE", help="The certificate to show to etcd.")] = None
    etcd_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its key, if the certificate has it not.")] = None
    etcd_user: Annotated[
        str | None, typer.Option(metavar="NAME", help="For etcd; the password is PENSTOCK_ETCD_PASSWORD.")
    ] = None

    def loaded(self) -> tuple[Config, list[Value]]:
        """With what the file and the environment say."""
        from penstock.server.config import load

        given = flags_given(**asdict(self))
        if self.config == "":
            raise InvalidInput("--config is empty. Pass the name of a file, or leave the option out")
        return load(given.pop("config", None) or os.environ.get("PENSTOCK_CONFIG"), os.environ, given)


def leave_loaded_alone() -> None:
    """What a start has loaded stays. Looking through it for garbage, now and then, takes up to 80 ms on a busy machine,
    in which nobody is answered."""
    gc.collect()
    gc.freeze()


@bundled
def serve(flags: Flags) -> None:
    """Start the broker. It ends with Ctrl-C or SIGTERM: what was asked is answered, and nothing is lost."""
    # Here and not at the top: other commands need none of it.
    import uvloop

    from penstock.server.logs import set_up
    from penstock.server.server import serve as serve_until_stopped

    config, _ = flags.loaded()
    set_up(config.log_format, config.log_level)
    uvloop.run(serve_until_stopped(config, lambda ready: leave_loaded_alone()))


@config_app.command("show")
@bundled
def show(flags: Flags, output: OutputOption = Output.TABLE) -> None:
    """What a server started like this would be told, and by whom. Secrets are not shown."""
    from penstock.server.config import SECRETS

    _, values = flags.loaded()
    hidden = {name for name, value, _ in values if name in SECRETS and value is not None}
    shown = [(name, "(hidden)" if name in hidden else shown_setting(value), source) for name, value, source in values]
    print_one(
        output,
        {name: {"value": value, "source": source} for name, value, source in shown},
        columns=[Column("setting"), Column("value"), Column("from")],
        rows=shown,
    )
