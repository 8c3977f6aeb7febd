"""penstock serve, penstock config show."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import OutputOption
from penstock.cli.output import Column, Output, console, print_json, print_table
from penstock.cli.shown import shown_setting

if TYPE_CHECKING:
    from penstock.server.config import Config, Value

config_app = typer.Typer(no_args_is_help=True, help="The configuration of a server.")

ConfigFile = Annotated[str | None, typer.Option("--config", metavar="FILE", help="A YAML file with these settings.")]
Data = Annotated[str | None, typer.Option("--data", metavar="DIR", help="Where the data is. Default: data.")]
Native = Annotated[
    str | None, typer.Option("--native", metavar="HOST:PORT", help="The native door, or none. Default: 127.0.0.1:7420.")
]
Http = Annotated[
    str | None, typer.Option("--http", metavar="HOST:PORT", help="The HTTP door, or none. Default: 127.0.0.1:8080.")
]
Grpc = Annotated[
    str | None, typer.Option("--grpc", metavar="HOST:PORT", help="The gRPC door, or none. Default: 127.0.0.1:9000.")
]
Access = Annotated[str | None, typer.Option("--access", metavar="FILE", help="The file with keys and rules.")]
TlsCert = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help="A certificate in PEM: TLS at every door.")
]
TlsKey = Annotated[
    str | None, typer.Option("--tls-key", metavar="FILE", help="Its key, if the certificate has it not.")
]
LogFormat = Annotated[str | None, typer.Option("--log-format", metavar="text|json", help="Default: text.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", metavar="LEVEL", help="Default: info.")]
Insecure = Annotated[
    bool | None, typer.Option("--insecure", help="Open to others without keys: everybody may do everything.")
]
Limits = Annotated[
    str | None,
    typer.Option("--limits", metavar="NAME=VALUE,…", help="Other limits than the defaults, as connections_max=100."),
]
TelemetryEndpoint = Annotated[
    str | None, typer.Option("--telemetry-endpoint", metavar="URL", help="An OTLP collector to send traces to.")
]
TelemetrySampleRatio = Annotated[
    str | None, typer.Option("--telemetry-sample-ratio", metavar="RATIO", help="Of messages. Default: 0.01.")
]
TelemetryServiceName = Annotated[
    str | None, typer.Option("--telemetry-service-name", metavar="NAME", help="In the traces. Default: penstock.")
]


def _loaded(file: str | None, **flags: Any) -> tuple[Config, list[Value]]:
    from penstock.server.config import load

    given = {name: value for name, value in flags.items() if value is not None}
    return load(file or os.environ.get("PENSTOCK_CONFIG"), os.environ, given)


def serve(
    config: ConfigFile = None,
    data: Data = None,
    native: Native = None,
    http: Http = None,
    grpc: Grpc = None,
    access: Access = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    insecure: Insecure = None,
    limits: Limits = None,
    telemetry_endpoint: TelemetryEndpoint = None,
    telemetry_sample_ratio: TelemetrySampleRatio = None,
    telemetry_service_name: TelemetryServiceName = None,
) -> None:
    """Start the broker. It ends with Ctrl-C or SIGTERM: what was asked is answered, and nothing is lost."""
    # Here and not at the top: other commands need none of it.
    import uvloop

    from penstock.server.logs import set_up
    from penstock.server.server import serve as serve_until_stopped

    chosen, _ = _loaded(
        config,
        data=data,
        native=native,
        http=http,
        grpc=grpc,
        access=access,
        tls_cert=tls_cert,
        tls_key=tls_key,
        log_format=log_format,
        log_level=log_level,
        insecure=insecure,
        limits=limits,
        telemetry_endpoint=telemetry_endpoint,
        telemetry_sample_ratio=telemetry_sample_ratio,
        telemetry_service_name=telemetry_service_name,
    )
    set_up(chosen.log_format, chosen.log_level)
    uvloop.run(serve_until_stopped(chosen))


@config_app.command("show")
def show(
    config: ConfigFile = None,
    data: Data = None,
    native: Native = None,
    http: Http = None,
    grpc: Grpc = None,
    access: Access = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    insecure: Insecure = None,
    limits: Limits = None,
    telemetry_endpoint: TelemetryEndpoint = None,
    telemetry_sample_ratio: TelemetrySampleRatio = None,
    telemetry_service_name: TelemetryServiceName = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """What a server started like this would be told, and by whom."""
    _, values = _loaded(
        config,
        data=data,
        native=native,
        http=http,
        grpc=grpc,
        access=access,
        tls_cert=tls_cert,
        tls_key=tls_key,
        log_format=log_format,
        log_level=log_level,
        insecure=insecure,
        limits=limits,
        telemetry_endpoint=telemetry_endpoint,
        telemetry_sample_ratio=telemetry_sample_ratio,
        telemetry_service_name=telemetry_service_name,
    )
    out = console()
    shown = [(name, shown_setting(value), source) for name, value, source in values]
    if output is Output.JSON:
        print_json(out, {name: {"value": value, "source": source} for name, value, source in shown})
    else:
        print_table(out, [Column("setting"), Column("value"), Column("from")], shown)
