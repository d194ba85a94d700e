"""The configuration of a run: how its settings are resolved, read back and explained, and what is built from them."""
