"""Standard input, output and error, which a daemon may have closed."""

from __future__ import annotations

import os


def reopen_closed() -> None:
    """Open /dev/null in place of each standard file that is closed.

    Otherwise the next file or socket of this process gets descriptor 0, 1 or 2: whatever is printed would end up in a
    log or on a connection, and libuv aborts the process when it closes such a descriptor.

    Standard input is opened for writing, so that reading it still fails.
    """
    while (descriptor := os.open(os.devnull, os.O_WRONLY)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
