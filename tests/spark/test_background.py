"""Spark behind everything else on the same machine."""

from __future__ import annotations

import os
import subprocess
import sys
from threading import get_native_id

import pytest

from penstock.spark.background import NICENESS, in_background

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, get_native_id())


def test_what_is_started_in_the_background_has_a_lower_priority_and_we_keep_ours() -> None:
    before = niceness()
    shown = in_background(lambda: subprocess.run(["nice"], capture_output=True, text=True, check=True).stdout)
    assert int(shown) == max(before, NICENESS)
    assert niceness() == before


def test_what_is_raised_in_the_background_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0)


def test_what_is_lower_already_is_not_raised() -> None:
    def lowered() -> int:
        os.setpriority(os.PRIO_PROCESS, get_native_id(), 19)
        return in_background(niceness)

    assert in_background(lowered) == 19
