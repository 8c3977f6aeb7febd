"""Everything at once: the examples, one after the other. Run it with `make examples`.

Without `spark_notebook.py`, which needs Java.
"""

import ast
import subprocess
import sys
from pathlib import Path

EXAMPLES = (
    "topics_and_keys",
    "groups_and_acks",
    "dead_letters",
    "ordering",
    "delays",
    "priorities",
    "rebalancing",
    "tracing",
    "replay",
    "producers",
    "asynchronous",
    "killed",
    "ring",
    "durable_log",
)
HERE = Path(__file__).parent


def main() -> int:
    for name in EXAMPLES:
        path = HERE / f"{name}.py"
        title = (ast.get_docstring(ast.parse(path.read_text())) or name).splitlines()[0]
        print(f"\n{title}  (examples/{name}.py)", flush=True)
        done = subprocess.run([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, check=False)
        print("".join(f"  {line}\n" for line in done.stdout.splitlines()), end="", flush=True)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
