"""Sweeps: many runs from a small TOML file, carried out on this machine or on a Ray cluster."""
