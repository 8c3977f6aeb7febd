"""Options and arguments that several commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import Output

OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people or for programs.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting by its name; may be repeated.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Without a terminal nobody is asked.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="At most so many.")]

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of a topic.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The name of a group.")]
MessageId = Annotated[str, typer.Argument(metavar="ID", help="topic:partition:offset.")]
MessageIds = Annotated[list[str], typer.Argument(metavar="ID…", help="topic:partition:offset.")]

FromTime = Annotated[
    str | None,
    typer.Option("--from-time", metavar="TIME", help="From then on: RFC 3339, or how long ago, as in 10m."),
]
ToTime = Annotated[str | None, typer.Option("--to-time", metavar="TIME", help="Until then, and without it.")]

IncludeDeleted = Annotated[
    bool, typer.Option("--include-deleted", help="Also what the log no longer has, from the archive.")
]
Archive = Annotated[
    str | None, typer.Option("--archive", metavar="DIR", help="The archive, or its URI. Default: as the broker says.")
]

Key = Annotated[str | None, typer.Option("--key", "-k", help="The key of the message.")]
Headers = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated.")
]
Priority = Annotated[str | None, typer.Option("--priority", metavar="high|normal|low", help="The lane it travels in.")]
