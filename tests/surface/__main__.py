"""python -m tests.surface: write the golden files anew, after a change of the public surface that is meant."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from surface.surfaces import SURFACES, shown
from surface.test_surface import GOLDEN

for name in SURFACES:
    (GOLDEN / f"{name}.txt").write_text(shown(name), encoding="utf-8")
