"""`python -m dcpg` is the command line."""

from dcpg.cli.app import main

main()
