"""Why a query failed, in one sentence. What Spark says of it has hundreds of lines; they are in the log."""

from __future__ import annotations

import re
from typing import Any

from penstock import errors

_PYTHON = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*): (.*)$")
_CODED = re.compile(r"^\[([a-z_]+)\] (.*)$", re.DOTALL)
_SPARKS = re.compile(r"^\[([A-Z][A-Z0-9_.]+)\] ?")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
# Behind what Spark says, its plan.
_PLAN = re.compile(r"^(?:[!'+*]|={2,}|JVM stacktrace|\s+at |Traceback|\d+ )")
# These tell where, and not what.
_WRAPPERS = ("STREAM_FAILED", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR", "TASK_WRITE_FAILED", "WRITING_JOB_ABORTED")
_CAUSES_MAX = 20
_ENDED = "Spark's Java process has ended: it was killed, or had too little memory (spark.driver.memory)"


def cause_of(error: BaseException) -> str:
    """The innermost thing that went wrong."""
    if _is_of_ended_java(error):
        return _ENDED
    try:
        return _cause_of(error)
    except Exception as unheard:
        # What some of py4j's errors say is asked from Java.
        return _ENDED if _is_of_ended_java(unheard) else type(error).__name__


def _cause_of(error: BaseException) -> str:
    text = str(error)
    package = type(error).__module__.partition(".")[0]
    if package not in ("pyspark", "py4j"):
        return f"{type(error).__name__}: {_sentence(text)}".removesuffix(": ")
    if (found := _python_cause(text)) is not None:
        return found
    messages = [text, *_java_messages(error)]
    for message in reversed(messages):
        if (found := _python_cause(message)) is not None:
            return found
        told = _sentence(message)
        if told:
            return told
    return type(error).__name__


def _is_of_ended_java(error: BaseException) -> bool:
    return isinstance(error, ConnectionError) or type(error).__name__ in ("Py4JNetworkError", "Py4JError")


def _java_messages(error: BaseException) -> list[str]:
    """From the outermost to the innermost."""
    found = []
    # What `StreamingQuery.exception()` returns has only the cause, already converted.
    java = _java_of(error) or _java_of(getattr(error, "_cause", None))
    for _ in range(_CAUSES_MAX):
        if java is None:
            break
        found.append(str(java.getMessage() or ""))
        java = java.getCause()
    return found


def _java_of(error: object) -> Any:
    return getattr(error, "_origin", None) or getattr(error, "java_exception", None)


def _python_cause(text: str) -> str | None:
    """The last line of the last traceback in it: the one that was raised."""
    _, traceback, rest = text.rpartition("Traceback (most recent call last):")
    if not traceback:
        return None
    lines = rest.splitlines()
    for number, line in enumerate(lines):
        match = _PYTHON.match(line)
        if match is None:
            continue
        said = [match[2]]
        for more in lines[number + 1 :]:
            if not more.strip() or _PLAN.match(more) or more.startswith((" ", "\t")):
                break
            said.append(more)
        return _python_sentence(match[1], " ".join(said).strip())
    return None


def _python_sentence(kind: str, message: str) -> str:
    coded = _CODED.match(message)
    if coded is not None:
        return f"{coded[2]} [{coded[1]}]"
    ours = getattr(errors, kind, None)
    if isinstance(ours, type) and issubclass(ours, errors.PenstockError):
        return f"{message} [{ours.code}]"
    return f"{kind}: {message}" if message else kind


def _sentence(message: str) -> str:
    """The first paragraph, without what is for programs."""
    lines: list[str] = []
    for line in _STATE.sub("", message).splitlines():
        if lines and (_PLAN.match(line) or not line.strip()):
            break
        if line.strip():
            lines.append(line.strip())
    text = " ".join(lines).strip().rstrip(";")
    match = _SPARKS.match(text)
    if match is not None and match[1].startswith(_WRAPPERS):
        return ""
    return text.removeprefix("[USER_RAISED_EXCEPTION] ")
