"""Environments: the interface, Procgen, an adapter for any Gymnasium vector environment, and choosers of levels."""
