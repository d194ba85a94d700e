"""Environments: the contract, Procgen, an adapter for any Gymnasium vector environment, and who chooses levels."""
