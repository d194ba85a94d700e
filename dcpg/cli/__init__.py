"""The command line. Slow imports are inside the commands, so that --help answers at once."""
