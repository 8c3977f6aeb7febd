"""The command line: one file per command group.

app      the commands together, and the way in
output   tables, JSON, errors and progress, shared by all commands
log      penstock log …
"""

from penstock.cli.app import main

__all__ = ["main"]
