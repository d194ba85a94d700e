"""Environments: Procgen, any Gymnasium vector environment, and the reward normaliser."""
