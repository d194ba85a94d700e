"""Delayed-Critic Policy Gradient: reinforcement learning that generalises."""
