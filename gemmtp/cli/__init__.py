"""The command line. ``--version`` answers before anything heavy is imported."""

import sys


def main() -> None:
    """The console script's entry: runs a command and exits with its code."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from gemmtp import __version__

        sys.stdout.write(f"gemmtp {__version__}\n")
        return
    from gemmtp.cli.app import run

    sys.exit(run())
