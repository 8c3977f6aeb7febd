"""How the demo tells what it does: in chapters, with tables, and with sentences that are checked before they are said.

Into a pipe goes plain text, as fast as it comes; at a terminal there is a pause after each chapter, to read it.
"""

from __future__ import annotations

import signal
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.text import Text

from penstock.cli.output import Column, console, print_table

T = TypeVar("T")

PATIENCE_S = 30.0
_READING_S = 1.5
_LOOK_AGAIN_S = 0.02
_LISTEN_S = 0.2
_WIDTH_MAX = 100


class NotSo(Exception):
    """What the demo claims is not true; `found` is what is true instead."""

    def __init__(self, sentence: str, *found: object) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.found = found


class Telling:
    def __init__(self) -> None:
        self.out = console()
        self.checked = 0
        self._chapters = 0

    def chapter(self, title: str, *sentences: str) -> None:
        if self._chapters and self.out.is_terminal:
            time.sleep(_READING_S)
        self._chapters += 1
        self.out.print()
        self.out.print(Text(f"{self._chapters}. {title}", "bold cyan"), soft_wrap=True)
        self.say(*sentences)

    def say(self, *sentences: str) -> None:
        for sentence in sentences:
            self._print(sentence)

    def say_until_interrupted(self, sentence: str) -> None:
        """Says it, and returns upon Ctrl-C."""
        # A handler that raised could do so within the printing, after which rich would print the sentence once more.
        asked: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
        try:
            self.say(sentence)
            while not asked:
                time.sleep(_LISTEN_S)
        finally:
            # None: somebody else's than Python's.
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)

    def table(self, columns: Sequence[Column | str], rows: Sequence[Sequence[object]]) -> None:
        self.out.print()
        found = [Column(column) if isinstance(column, str) else column for column in columns]
        print_table(self.out, found, [[str(cell) for cell in row] for row in rows])
        self.out.print()

    def check(self, is_so: bool, sentence: str, *found: object) -> None:
        """Says the sentence if it is true, and ends the demo if not."""
        if not is_so:
            raise NotSo(sentence, *found)
        self.checked += 1
        self._print(sentence, "✓ ", "green")

    def failure(self, error: NotSo) -> None:
        self._print(f"NOT SO: {error.sentence}", "✗ ", "bold red")
        for each in error.found:
            self._print(f"found: {each}", "  ")

    def _print(self, sentence: str, mark: str = "", style: str = "") -> None:
        width = min(self.out.width, _WIDTH_MAX) if self.out.is_terminal else self.out.width
        lines = textwrap.wrap(sentence, width - len(mark), break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(lines):
            self.out.print(Text.assemble((" " * len(mark) if number else mark, style), line), soft_wrap=True)


def until(look: Callable[[], T], wanted: Callable[[T], object], what: str) -> T:
    """What `look` sees as soon as it is as wanted. It is asked again and again, but not for ever."""
    give_up = time.monotonic() + PATIENCE_S
    while not wanted(found := look()):
        if time.monotonic() > give_up:
            raise NotSo(f"within {PATIENCE_S:g} s {what}", found)
        time.sleep(_LOOK_AGAIN_S)
    return found
