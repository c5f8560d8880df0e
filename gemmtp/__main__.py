"""``python -m gemmtp``."""

from gemmtp.cli import main

main()
