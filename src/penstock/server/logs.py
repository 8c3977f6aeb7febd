"""What a server tells of itself, on stderr: for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

# What a log record has of itself; everything else was put there by whoever wrote it.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told = {"time": time, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        told |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {name}={value}" for name, value in vars(record).items() if name not in _OWN)
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        line = f"{time} {record.levelname.lower():7} {_in_one_line(record.getMessage() + extra)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _in_one_line(text: str) -> str:
    """Some of it was said by others, who must not be able to write lines of their own."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def set_up(log_format: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    logger, root = logging.getLogger("penstock"), logging.getLogger()
    logger.setLevel(level.upper())
    # Of libraries, such as the exporter of OpenTelemetry, what went wrong: in the same form, instead of as it is.
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, logger.level))
