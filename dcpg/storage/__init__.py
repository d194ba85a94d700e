"""Files on disk: atomic writes, rows of JSON, locks, run directories and checkpoints."""
