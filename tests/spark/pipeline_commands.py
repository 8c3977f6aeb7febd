"""Commands one after the other in one process, for test_pipeline_commands.py: Spark's Java is started once for all.

    python pipeline_commands.py COMMANDS

COMMANDS is a list of lists, in JSON. Behind what each of them has printed is a line with its exit code.
"""

from __future__ import annotations

import json
import os
import sys

from penstock.cli import main

if __name__ == "__main__":
    # For rows that kill what handles them: workers of Spark's have a process group of their own.
    os.environ["VICTIMS"] = str(os.getpgid(0))
    for command in json.loads(sys.argv[1]):
        try:
            main(command)
        except SystemExit as exited:
            print(f"exit {exited.code}", flush=True)
