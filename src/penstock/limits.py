"""Every bound on what one caller can make the broker hold, read or allocate, in one place.

Zero never means unlimited: a limit that is not positive is refused. What a name may look like is not among them: names
are in catalogs, in URLs and in other systems, and one that is a name here must be one everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.errors import InvalidInput, LimitReached

KIB = 1024
MIB = 1024 * KIB
_SECOND_US = 1_000_000
NAME_LENGTH_MAX = 200
# So that sums of them stay numbers of 63 bits.
_HIGHEST = 1 << 53


@dataclass(frozen=True, slots=True)
class Limits:
    """Those that a client has to keep to come first; it is told them when it connects (`TOLD`)."""

    # Kafka's default batch ceiling is 1 MiB, NATS' message ceiling 1 MiB, SQS' 256 KiB (1 MiB since 2025).
    frame_bytes_max: int = 8 * MIB
    batch_messages_max: int = 10_000
    message_bytes_max: int = 1 * MIB
    header_bytes_max: int = 32 * KIB
    headers_max: int = 100
    # A frame may decompress to this many times `frame_bytes_max`, and to this many times its own size.
    decompressed_frames_max: int = 4
    decompression_ratio_max: int = 100

    # How deep JSON may be nested.
    json_nesting_max: int = 32
    # The first packet of a native connection, of somebody who has not said who it is.
    hello_bytes_max: int = 4 * KIB
    # Of each door. Those that have not shown a key yet are fewer: anybody can make them.
    connections_max: int = 10_000
    strangers_max: int = 512
    # Until a native client has said who it is, or TLS and HTTP/2 have been agreed on.
    handshake_us: int = 5 * _SECOND_US
    http_head_us: int = 10 * _SECOND_US
    http_body_bytes_per_s_min: int = 8 * KIB
    idle_us: int = 300 * _SECOND_US
    # How long somebody may take nothing of what it is sent, or a gRPC call may have no request.
    stuck_us: int = 60 * _SECOND_US
    # How long somebody waits until other nodes of a cluster have what it publishes, or know of its answer.
    commit_us: int = 10 * _SECOND_US
    # How long the broker stays awake for the next message of somebody who publishes one after another.
    awake_us: int = 300
    # Of requests that are not answered yet: beyond it a connection is not read from; but see `grpc/intake.py`. And of
    # its replies that are prepared or not sent: see `reply_budget.py`.
    in_flight_bytes_max: int = 16 * MIB
    # Messages of a partition that a group may hold: the most that its own bound may be, which is 20,000 by default.
    unacked_max: int = 1_000_000
    # Of a broker, or of a cluster, by all clients together. Dead-letter topics are not counted. Members are those of
    # all groups, of which each has 1,000 at the most; in a cluster each coordinator counts its own.
    topics_max: int = 10_000
    groups_max: int = 10_000
    members_max: int = 10_000
    schedules_max: int = 10_000
    # With less free, messages are not taken any more; those that are there can be consumed, and are given room by it.
    disk_free_percent_min: int = 5

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or not 1 <= value <= _HIGHEST:
                raise InvalidInput(
                    f"limit {field.name} is a whole number from 1 to {_HIGHEST}, not {value!r}", limit=field.name
                )
        # Where a message of a frame starts and ends is a number of 31 bits.
        if self.decompressed_bytes_max >= 1 << 31:
            raise InvalidInput(
                f"limits frame_bytes_max and decompressed_frames_max allow {self.decompressed_bytes_max} bytes in a "
                f"frame; there is room for {(1 << 31) - 1}",
                limit="frame_bytes_max",
            )
        if self.disk_free_percent_min > 99:
            raise InvalidInput(
                f"limit disk_free_percent_min is 1 to 99, not {self.disk_free_percent_min}",
                limit="disk_free_percent_min",
            )

    @property
    def decompressed_bytes_max(self) -> int:
        return self.frame_bytes_max * self.decompressed_frames_max

    def __str__(self) -> str:
        """As the configuration has them: those that are not the defaults."""
        told = []
        for field in fields(self):
            name, value = field.name.removesuffix("_us"), getattr(self, field.name)
            if value != field.default:
                told.append(f"{name}={value}" if name == field.name else f"{name}={value}us")
        return ",".join(told) or "default"


def check_count(limit: str, count: int, limits: Limits, what: str, remedy: str) -> None:
    """LimitReached if there are as many already as the limit of that name allows. `remedy` is a command."""
    maximum: int = getattr(limits, limit)
    if count >= maximum:
        raise LimitReached(
            f"there are {count} {what} already, and {limit} is {maximum}. Delete some that are not used any more "
            f"({remedy}), or raise the limit and restart the broker (limits: {{{limit}: {2 * maximum}}})",
            limit=limit,
            maximum=maximum,
        )


TOLD = (
    "frame_bytes_max",
    "batch_messages_max",
    "message_bytes_max",
    "header_bytes_max",
    "headers_max",
    "decompressed_frames_max",
    "decompression_ratio_max",
)
DEFAULT_LIMITS = Limits()
# Of what is stored, which the format alone bounds. Limits apply to what clients send: an operator may lower them, and
# messages from before are delivered, read, dead-lettered and redriven as they are.
STORED_LIMITS = Limits(
    frame_bytes_max=(1 << 31) - 1,
    batch_messages_max=(1 << 31) - 1,
    message_bytes_max=(1 << 31) - 1,
    header_bytes_max=(1 << 31) - 1,
    headers_max=(1 << 31) - 1,
    decompressed_frames_max=1,
    decompression_ratio_max=_HIGHEST,
)
