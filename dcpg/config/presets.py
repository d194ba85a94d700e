"""The presets: sizes for the paper, for a laptop and for trying out a command."""

from __future__ import annotations

from typing import Any

# Presets change the paper's values by dotted name; names that a method does not have are skipped.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "laptop": {
        "steps": 800_000,
        "rollout_length": 32,
        "algorithm.N_pi": 4,
        "algorithm.E_aux": 2,
        "algorithm.segments": 8,
        "env.frame_size": 32,
        "network.channels": (8, 16, 16),
        "evaluation.every": 40,
    },
    "tiny": {
        "steps": 2_048,
        "rollout_length": 16,
        "algorithm.N_pi": 2,
        "env.num_envs": 8,
        "env.frame_size": 32,
        "network.channels": (4, 8, 8),
        "network.features": 32,
        "evaluation.episodes": 8,
        "evaluation.every": 16,
        "machine.threads": 1,
    },
}
