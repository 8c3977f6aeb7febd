"""`penstock` of an older build: the first argument is the directory with its source."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))
    from penstock.cli.app import main

    main()
