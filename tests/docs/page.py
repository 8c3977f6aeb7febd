"""A page of the documentation that is run as its reader would: block by block, in one directory, against real servers.

    ```sh                   penstock serve …        starts a server, on ports that are free
                            make …, . .venv/…       what a reader has done already; the target must be there
                            $ command               run in one shell for the whole page; must end well, and print what
                                                    stands below it. A command in the background (`&`) goes on when it
                                                    has printed that
    ```python               run in one interpreter for the whole page; prints the `text` block behind it, or nothing
    ```python before        of another system, which is not here: it must be Python
    ```python NAME.py       written to that file; so is yaml NAME.yaml

`…` stands for anything, and how many blanks there are does not matter. `localhost:7420`, `:8080` and `:9000` are the
doors of the server that was started last.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import IO, NamedTuple

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PORTS = {"native": "7420", "http": "8080", "grpc": "9000"}
PATIENCE_S = 60
_FENCE = re.compile(r"^```(\w*) ?(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
_MARK = "\x1e"


class Block(NamedTuple):
    language: str
    note: str
    text: str
    line: int


def blocks_of(page: str) -> list[Block]:
    return [Block(one[1], one[2], one[3], page.count("\n", 0, one.start()) + 2) for one in _FENCE.finditer(page)]


def as_told(told: str, printed: str) -> bool:
    pattern = re.escape(_plain(told)).replace("…", ".*")
    return re.fullmatch(pattern, _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


class Command(NamedTuple):
    text: str
    told: str

    @property
    def is_in_background(self) -> bool:
        return self.text.endswith(" &")


def commands_of(block: Block) -> list[Command]:
    """Of lines that start with `$`, each with what it prints. A backslash at its end goes on with the next line."""
    found = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        match = re.match(r"((?:.*\\\n)*.*)\n", part)
        assert match is not None
        found.append(Command(match[1], part[match.end() :]))
    return found


class Talk:
    """A process that is told what to do line by line, and marks where it is done with each."""

    def __init__(self, command: list[str], directory: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in = self._process.stdin
        self._said: Queue[str | None] = Queue()
        self._reader = Thread(target=self._read, args=[self._process.stdout], daemon=True)
        self._reader.start()

    def _read(self, out: IO[str]) -> None:
        with out:
            for line in out:
                self._said.put(line)
        self._said.put(None)

    def ask(self, line: str, told: str | None = None) -> tuple[str, str]:
        """What it printed, and what it said of the end. With `told`, it may print that also after it was done."""
        self._in.write(line + "\n")
        printed, end, until = "", None, monotonic() + PATIENCE_S
        while end is None or (told is not None and not as_told(told, printed)):
            try:
                said = self._said.get(timeout=max(until - monotonic(), 0))
            except Empty:
                return printed, end or "it did not come to its end"
            if said is None:
                return printed, "it is gone"
            before, mark, rest = said.partition(_MARK)
            printed += before
            end = rest.strip() if mark else end
        return printed, end

    def close(self) -> tuple[int, str]:
        self._in.close()
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = 1
        # What a page that failed has left in the background.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        rest = ""
        while (said := self._said.get()) is not None:
            rest += said
        return code, rest


_INTERPRETER = f"""
import json, logging, sys, traceback
# What handlers raise on purpose is logged, and not printed.
logging.getLogger("penstock.consumer").addHandler(logging.NullHandler())
names = {{"__name__": "__main__"}}
for line in sys.stdin:
    name, text = json.loads(line)
    try:
        exec(compile(text, name, "exec"), names)
        end = "0"
    except BaseException:
        traceback.print_exc()
        end = "1"
    sys.stderr.flush()
    print({_MARK!r} + end, flush=True)
"""


class Reader:
    """Who does what a page says."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._environment = plain_environment()
        self._ports: dict[str, str] = {}
        self._shell: Talk | None = None
        self._python: Talk | None = None

    def follow(self, page: Path) -> None:
        name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name
        blocks = blocks_of(page.read_text(encoding="utf-8"))
        following = [*(after for _, after in pairwise(blocks)), None]
        before = None
        for block, after in zip(blocks, following, strict=True):
            shown = after.text if after is not None and after.language == "text" else ""
            self._do(block, shown, f"{name}:{block.line}")
            is_output = before is not None and (before.language, before.note) == ("python", "")
            assert block.language != "text" or is_output, f"{name}:{block.line}: nothing prints this"
            before = block

    def _do(self, block: Block, shown: str, where: str) -> None:
        match block.language, block.note:
            case "sh", _:
                self._sh(block, where)
            case "python", "":
                self._run_python(block.text, shown, where)
            case "python", "before":
                ast.parse(block.text)
            case (("python" | "yaml"), name):
                assert name.endswith((".py", ".yaml")), f"{where}: {name!r}"
                (self._directory / name).write_text(self._here(block.text), encoding="utf-8")
            case "text", _:
                pass
            case language, _:
                raise AssertionError(f"{where}: nobody runs a block of {language!r}")

    def _sh(self, block: Block, where: str) -> None:
        if block.text.startswith("penstock serve"):
            self._serve(block.text)
            return
        commands = commands_of(block)
        if not commands:
            for line in block.text.splitlines():
                _check_known(line, where)
        for command in commands:
            self._run_command(command, f"{where}: $ {command.text}")

    def _serve(self, command: str) -> None:
        """As it is written, but for the ports and the form of its log."""
        doors = {f"PENSTOCK_{door.upper()}": "127.0.0.1:0" for door in PORTS}
        environment = {**self._environment, **doors, "PENSTOCK_LOG_FORMAT": "json"}
        ready = self._stack.enter_context(serving(command, self._directory, environment))
        self._ports = {PORTS[door]: ready[door].rpartition(":")[2] for door in PORTS if ready[door] != "none"}
        self._environment["PENSTOCK_SERVER"] = f"penstock://{ready['native']}"

    def _here(self, text: str) -> str:
        for port, real in self._ports.items():
            text = text.replace(f"localhost:{port}", f"127.0.0.1:{real}")
        return text

    def _run_command(self, command: Command, where: str) -> None:
        if self._shell is None:
            self._shell = Talk(["bash", "--norc"], self._directory, self._environment)
            self._stack.callback(self._close, "_shell")
        script = self._directory / ".command"
        script.write_text(self._here(command.text) + "\n", encoding="utf-8")
        told = command.told if command.is_in_background else None
        # Not from its own input: there the next commands come from.
        line = f"set -o pipefail; . ./.command </dev/null; printf '{_MARK}%s\\n' $?"
        printed, end = self._shell.ask(line, told)
        assert end == "0", f"{where}\n{printed}[{end}]"
        assert as_told(command.told, printed), f"{where}\n{printed}"

    def _run_python(self, text: str, shown: str, where: str) -> None:
        if self._python is None:
            command = [sys.executable, "-W", "error", "-u", "-c", _INTERPRETER]
            self._python = Talk(command, self._directory, self._environment)
            self._stack.callback(self._close, "_python")
        printed, end = self._python.ask(json.dumps([where, self._here(text)]))
        assert end == "0", f"{where}\n{printed}[{end}]"
        assert as_told(shown, printed), f"{where}\n{printed}"

    def _close(self, name: str) -> None:
        talk: Talk = getattr(self, name)
        assert talk.close() == (0, ""), f"what was left over by the end of the page ({name})"


def plain_environment() -> dict[str, str]:
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PENSTOCK_", "PYTEST_")) and name != "COLUMNS"
    }
    return {**plain, "PATH": f"{BIN}:{os.environ['PATH']}", "TZ": "UTC"}


def _check_known(line: str, where: str) -> None:
    target = line.removeprefix("make ")
    is_target = line != target and re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE) is not None
    assert is_target or line == ". .venv/bin/activate", f"{where}: nobody runs {line!r}"


@contextmanager
def serving(command: str, directory: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=directory, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        ready = json.loads(process.stderr.readline())
        assert ready["message"] == "ready", ready
        # What it tells later must not fill the pipe.
        rest = Thread(target=process.stderr.read, daemon=True)
        rest.start()
        yield ready
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        rest.join()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()


def follow(page: Path, directory: Path) -> None:
    with ExitStack() as stack:
        Reader(directory, stack).follow(page)
