"""libFuzzer on one of the decoders, in a process of its own: `python fuzzing.py TARGET FOLDER [OPTION OF LIBFUZZER…]`.

With a file instead of a folder, it is what is read: `python fuzzing.py frames crash-…` repeats what was found.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import atheris

with atheris.instrument_imports(include=["penstock"]):
    import penstock.frame
    import penstock.wire.conversation  # noqa: F401 - what is to be watched

from security.decoders import TARGETS

if __name__ == "__main__":
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()
