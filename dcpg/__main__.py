"""`python -m dcpg` is the command line."""

from dcpg.cli import main

main()
