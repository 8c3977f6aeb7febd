"""A YAML file as it was written: every value knows its line, so that a mistake is told where it is.

All mistakes are found, not the first one only: what is wrong is noted, and reading goes on with None.

`${NAME}` in a text is the variable of the environment, `${NAME:-other}` is `other` if there is none, `$${` is `${`.
What is told of a value is what the file says, never what a variable held: that may be a key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import yaml

from penstock.durations import duration_us
from penstock.errors import InvalidInput
from penstock.limits import NAME_LENGTH_MAX

_TEXTS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp")
_WHOLE = "tag:yaml.org,2002:int"
_FLAG = "tag:yaml.org,2002:bool"
_NOTHING = "tag:yaml.org,2002:null"
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")
_SHOWN_MAX = 80
# Spark's are of 64 bits.
_WHOLE_MAX = (1 << 63) - 1
TOPIC = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


class Problem(NamedTuple):
    """`line` counts from 1; 0 is the file as a whole. `field` is where in it, as in source.decode."""

    line: int
    field: str
    message: str

    def shown(self, file: str) -> str:
        place = f"{file}:{self.line}" if self.line else file
        return f"{place}: {self.field}: {self.message}" if self.field else f"{place}: {self.message}"


class Document:
    """One file; `problems` fills while it is read."""

    def __init__(self, file: Path, environment: Mapping[str, str] | None = None) -> None:
        self.file = file
        self.environment = os.environ if environment is None else environment
        self.problems: list[Problem] = []
        # Where topics are named.
        self.topics: dict[str, int] = {}

    def root(self) -> Field | None:
        """InvalidInput if there is no such file; what is in it is a matter of problems."""
        try:
            text = self.file.read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"{self.file} can't be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{self.file} is not text in UTF-8: {error.reason}") from error
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            self.problems.append(Problem(line, "", f"not YAML: {error.problem}"))
            return None
        except RecursionError:
            self.problems.append(Problem(0, "", "nested too deeply"))
            return None
        except yaml.YAMLError as error:
            self.problems.append(Problem(0, "", f"not YAML: {error}"))
            return None
        if node is None:
            self.problems.append(Problem(0, "", "the file is empty"))
            return None
        return Field(self, "", node)

    def note(self, line: int, field: str, message: str) -> None:
        self.problems.append(Problem(line, field, message))


class Field:
    """One value of the file."""

    def __init__(self, document: Document, name: str, node: yaml.Node) -> None:
        self._document = document
        self.name = name
        self._node = node

    @property
    def line(self) -> int:
        return int(self._node.start_mark.line) + 1

    @property
    def raw(self) -> str:
        """As it is written."""
        if isinstance(self._node, yaml.ScalarNode):
            text = str(self._node.value)
            return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…")
        return "a list" if isinstance(self._node, yaml.SequenceNode) else "names and values"

    @property
    def is_list(self) -> bool:
        return isinstance(self._node, yaml.SequenceNode)

    @property
    def is_section(self) -> bool:
        return isinstance(self._node, yaml.MappingNode)

    @property
    def is_nothing(self) -> bool:
        return bool(self._node.tag == _NOTHING)

    def topic(self, name: str) -> bool:
        """Whether it is a name for one. Remembered, with its line, so that it can be told that there is none."""
        if not TOPIC.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
            shown = self.raw if isinstance(self._node, yaml.ScalarNode) else repr(name[:_SHOWN_MAX])
            self.wrong(f"names of topics are made of a-z A-Z 0-9 . _ - and do not start with a dot: {shown}")
            return False
        self._document.topics.setdefault(name, self.line)
        return True

    def wrong(self, message: str) -> None:
        self._document.note(self.line, self.name, message)

    def refuse(self, message: str) -> None:
        """What somebody else says of the value, unless a variable is in it."""
        has_variable = isinstance(self._node, yaml.ScalarNode) and "${" in self._node.value
        self.wrong(f"can't be {self.raw} with what its variables hold" if has_variable else message)

    # --- what a value may be --------------------------------------------------------------------------------

    def text(self, what: str = "a text") -> str | None:
        if not isinstance(self._node, yaml.ScalarNode) or self._node.tag not in _TEXTS or not self._node.value.strip():
            told = "nothing" if self.is_nothing else self.raw
            is_other = self._node.tag in (_WHOLE, _FLAG) and "duration" not in what
            hint = ": put it in quotes" if is_other else ""
            self.wrong(f"is {what}, not {told}{hint}")
            return None
        return self._substituted(str(self._node.value))

    def secret(self) -> str | None:
        """A text that is never told."""
        if not isinstance(self._node, yaml.ScalarNode) or self._node.tag not in _TEXTS or not self._node.value:
            self.wrong("is a text; put it in quotes, or better into a variable: ${PENSTOCK_KEY}")
            return None
        return self._substituted(str(self._node.value))

    def word(self, known: Sequence[str]) -> str | None:
        text = self.text(f"{', '.join(known[:-1])} or {known[-1]}")
        if text is None or text in known:
            return text
        near = get_close_matches(text, known, n=1)
        did = f"; did you mean {near[0]}?" if near else ""
        self.wrong(f"is {', '.join(known[:-1])} or {known[-1]}, not {self.raw}{did}")
        return None

    def whole(self, least: int = 1) -> int | None:
        text = str(self._node.value) if isinstance(self._node, yaml.ScalarNode) else ""
        # With a 0 in front it would be octal to some, and to us not.
        is_decimal = self._node.tag == _WHOLE and re.fullmatch(r"0|[1-9][0-9]{0,18}", text)
        if not is_decimal or not least <= int(text) <= _WHOLE_MAX:
            most = f"to {_WHOLE_MAX}" if len(text) > 18 else "on"
            self.wrong(f"is a whole number from {least} {most}, not {self.raw}")
            return None
        return int(text)

    def flag(self) -> bool | None:
        if self._node.tag != _FLAG:
            self.wrong(f"is true or false, not {self.raw}")
            return None
        return str(self._node.value).lower() in ("true", "yes", "on")

    def plain(self) -> str | None:
        """Any scalar, as text: what Spark is told is text anyway."""
        if not isinstance(self._node, yaml.ScalarNode) or self.is_nothing:
            self.wrong(f"is a text or a number, not {'nothing' if self.is_nothing else self.raw}")
            return None
        text = str(self._node.value)
        return text.lower() if self._node.tag == _FLAG else self._substituted(text)

    def duration_us(self, least_us: int = 0) -> int | None:
        text = self.text("a duration, as in 10s")
        if text is None:
            return None
        try:
            found = duration_us(text)
        except InvalidInput as error:
            self.refuse(error.message)
            return None
        if found < least_us:
            self.wrong(f"is too short: {self.raw}")
            return None
        return found

    def items(self, what: str) -> list[Field]:
        """Of a list, or of a single value that stands for a list of one."""
        if isinstance(self._node, yaml.SequenceNode):
            found = [Field(self._document, f"{self.name}[{i}]", node) for i, node in enumerate(self._node.value)]
            if not found:
                self.wrong(f"is {what}: the list is empty")
            return found
        return [self]

    def texts(self, what: str) -> list[str]:
        if self.is_section or self.is_nothing:
            self.wrong(f"is {what}, not {'nothing' if self.is_nothing else self.raw}")
            return []
        return [text for item in self.items(what) if (text := item.text()) is not None]

    def pairs(self, what: str) -> Iterator[tuple[str, Field]]:
        """Names and values, whatever the names."""
        if not isinstance(self._node, yaml.MappingNode):
            self.wrong(f"is {what}, not {'nothing' if self.is_nothing else self.raw}")
            return
        seen = set()
        for key, value in self._node.value:
            name = str(key.value)
            field = Field(self._document, f"{self.name}.{name}" if self.name else name, value)
            if name in seen:
                self._document.note(key.start_mark.line + 1, field.name, "is there twice")
            seen.add(name)
            yield name, field

    def section(self, known: Sequence[str], what: str) -> Section | None:
        """Names that are not known are wrong, and told with the nearest that is."""
        if not isinstance(self._node, yaml.MappingNode):
            self.wrong(f"is {what}, not {'nothing' if self.is_nothing else self.raw}")
            return None
        return Section(self, known)

    # --- variables ------------------------------------------------------------------------------------------

    def _substituted(self, text: str) -> str | None:
        missing = []

        def value(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            if match[1] is None:
                missing.append("${ is the start of a variable, as in ${NAME}; to mean the characters, write $${")
                return ""
            found = self._document.environment.get(match[1]) or match[2]
            if found is None:
                missing.append(f"there is no variable {match[1]} in the environment; ${{{match[1]}:-…}} has a default")
            return found or ""

        found = _VARIABLE.sub(value, text)
        for each in missing:
            self.wrong(each)
        return None if missing else found


class Section:
    """Names and values, of which the names are known."""

    def __init__(self, field: Field, known: Sequence[str]) -> None:
        self._field = field
        self.fields: dict[str, Field] = {}
        for name, value in field.pairs("names and values"):
            if name in known:
                self.fields[name] = value
                continue
            near = get_close_matches(name, known, n=1)
            told = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            value.wrong(f"there is no such field; {told}")

    def wrong(self, message: str) -> None:
        self._field.wrong(message)

    def get(self, name: str) -> Field | None:
        return self.fields.get(name)

    def required(self, name: str, example: str) -> Field | None:
        if name not in self.fields:
            self._field.wrong(f"{name} is missing, as in {name}: {example}")
        return self.fields.get(name)

    def one_of(self, names: Sequence[str], *, is_required: bool) -> Field | None:
        """Exactly one of these."""
        found = [self.fields[name] for name in names if name in self.fields]
        told = f"{', '.join(names[:-1])} or {names[-1]}"
        if len(found) > 1:
            found[1].wrong(f"there is one of {told}, not several")
        if not found and is_required:
            self._field.wrong(f"one of {told} is missing")
        return found[0] if found else None

    def refuse(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            if name in self.fields:
                self.fields[name].wrong(reason)
