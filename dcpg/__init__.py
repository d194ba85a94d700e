"""Delayed-Critic Policy Gradient: reinforcement learning that generalises.

import dcpg
run = dcpg.train("ddcpg", game="bigfish", preset="laptop", seed=0)
dcpg.evaluate(run, levels="test")
dcpg.load(run).act(observation)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcpg.api import Agent, Observer, Recording, Run, analyse, evaluate, export, load, record, resume, train

__version__ = "0.3.0"
__all__ = [
    "Agent", "Observer", "Recording", "Run", "analyse", "evaluate", "export", "load", "record", "resume", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # lazy: `import dcpg` and `dcpg --help` need not wait for torch
    if name in __all__:
        from dcpg import api

        return getattr(api, name)
    raise AttributeError(f"module 'dcpg' has no attribute {name!r}")
