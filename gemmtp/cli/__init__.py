"""The command line. ``--version`` answers before anything heavy is imported."""

import os
import sys
from contextlib import suppress

SIGNALLED = 128
"""Exit codes above it are a signal's number and this."""


def main() -> None:
    """The console script's entry: runs a command and exits with its code."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from gemmtp import __version__

        sys.stdout.write(f"gemmtp {__version__}\n")
        return
    try:
        from gemmtp.cli.app import run

        code = run()
        if code > SIGNALLED:
            # Everything is saved; threads that still import or compute are not waited for.
            # A terminal that hung up takes no more.
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
        sys.exit(code)
    except KeyboardInterrupt:
        # Before a command began, while Python was importing.
        sys.stderr.write("gemmtp: Interrupted.\n")
        sys.exit(130)
