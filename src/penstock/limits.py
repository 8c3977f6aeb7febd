"""Every bound on what one caller can make the broker hold, read or allocate, in one place.

Zero never means unlimited: a limit that is not positive is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.errors import InvalidInput

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    # Kafka's default batch ceiling is 1 MiB, NATS' message ceiling 1 MiB, SQS' 256 KiB (1 MiB since 2025).
    frame_bytes_max: int = 8 * MIB
    batch_messages_max: int = 10_000
    message_bytes_max: int = 1 * MIB
    header_bytes_max: int = 32 * KIB
    headers_max: int = 100
    # A frame may decompress to this many times `frame_bytes_max`, and to this many times its own size.
    decompressed_frames_max: int = 4
    decompression_ratio_max: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise InvalidInput(f"limit {field.name} must be at least 1, not {value}", limit=field.name)

    @property
    def decompressed_bytes_max(self) -> int:
        return self.frame_bytes_max * self.decompressed_frames_max


DEFAULT_LIMITS = Limits()
