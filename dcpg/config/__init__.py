"""The configuration of a run: its settings, how they are resolved, read back, explained, and what they build."""
