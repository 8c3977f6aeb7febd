"""The public surface does not change unnoticed. If a change is meant: python -m tests.surface, and CHANGELOG.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from surface.surfaces import SURFACES, shown

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", SURFACES)
def test_the_public_surface_is_as_recorded(name: str) -> None:
    assert shown(name).splitlines() == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()
