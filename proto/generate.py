"""Makes the Python code of penstock.proto: `.venv/bin/python proto/generate.py`. What it makes is committed.

A test makes it again and compares, so that the two can't drift apart.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
PROTO = "penstock/v1/penstock.proto"
TARGET = HERE.parent / "src" / "penstock" / "server" / "grpc"
MADE = ("penstock_pb2.py", "penstock_pb2.pyi")


def generate(target: Path) -> None:
    """Into `target`, whatever package that is: nothing in there imports the rest."""
    included = str(files("grpc_tools") / "_proto")
    with tempfile.TemporaryDirectory() as made:
        arguments = ["protoc", f"-I{HERE}", f"-I{included}", f"--python_out={made}", f"--pyi_out={made}", PROTO]
        if protoc.main(arguments) != 0:
            sys.exit("protoc failed")
        for name in MADE:
            shutil.copyfile(Path(made) / "penstock" / "v1" / name, target / name)


if __name__ == "__main__":
    generate(TARGET)
