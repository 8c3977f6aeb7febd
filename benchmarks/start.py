"""How long until something can be done?

From the start of a process on: until `import penstock` is done, until `penstock --help` is shown, and until
`penstock serve` is ready in an empty directory, with all its doors. Beside them are a Python that does nothing, and the
import of what the first `penstock.connect` needs, which `import penstock` leaves for later.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from statistics import median

import harness
from harness import Figure, Run, info
from serving import DOORS, PENSTOCK, broker


def ready_s(run: Run) -> float:
    with broker(run, DOORS) as running:
        return running.ready_s


def measure(run: Run) -> Iterator[Figure]:
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "import": [sys.executable, "-c", "import penstock"],
        "connect": [sys.executable, "-c", "import penstock.net"],
        "help": [str(PENSTOCK), "--help"],
    }
    contenders: dict[str, harness.Contender] = {
        name: partial(harness.seconds, partial(subprocess.run, command, check=True, capture_output=True))
        for name, command in commands.items()
    }
    contenders["ready"] = partial(ready_s, run)
    taken = harness.interleave(run.rounds, contenders)
    yield harness.at_most("import penstock", 1e3 * median(taken["import"]), "ms", 300)
    yield harness.at_most("penstock --help", 1e3 * median(taken["help"]), "ms", 400)
    yield harness.at_most("penstock serve, until ready", median(taken["ready"]), "s", 1.5)
    yield info("import of what connect needs", 1e3 * median(taken["connect"]), "ms")
    yield info("python -c pass", 1e3 * median(taken["python"]), "ms")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
