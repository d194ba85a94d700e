"""This machine: memory, devices, and what a run will need of it."""
