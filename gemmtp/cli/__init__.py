"""The command line. ``--version`` answers before anything heavy is imported."""

import sys


def main() -> None:
    """The console script's entry: runs a command and exits with its code."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from gemmtp import __version__

        sys.stdout.write(f"gemmtp {__version__}\n")
        return
    try:
        from gemmtp.cli.app import run

        sys.exit(run())
    except KeyboardInterrupt:
        # Before a command began, while Python was importing.
        sys.stderr.write("gemmtp: Interrupted.\n")
        sys.exit(130)
