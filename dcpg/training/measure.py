"""Measurements while a run trains: stiffness and wrong actions, on a rollout and at the parameters that sampled it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dcpg.config.schema import Config
from dcpg.core.networks import Network
from dcpg.core.rollout import Rollout
from dcpg.core.state import State
from dcpg.core.stiffness import states_and_targets, stiffness
from dcpg.core.wrong_actions import believed_actions


class Measurements:
    """The measurements that the setting `analyse` asks for, as columns of the current rollout's row."""

    def __init__(self, config: Config, network: Network, actions: int) -> None:
        self.config, self.network, self.actions = config, network, actions
        self.columns: dict[str, float] = {}

    def measure(self, tau: Rollout, rollout: int, between_chunks: Callable[[], None]) -> bool:
        """Measure a rollout if a measurement is due; returns whether it was."""
        c, chunk = self.config, self.config.machine.chunk
        self.columns = {}
        if not c.analyse or rollout % c.analyse_every:
            return False
        if "stiffness" in c.analyse:
            head = c.declared().advantages
            frames, returns = states_and_targets(tau, head)
            self.columns |= stiffness(self.network, head, frames, returns, chunk, between_chunks).row()
        if "ood-actions" in c.analyse:
            found = believed_actions(self.network, tau, c.game, self.actions, chunk, between_chunks)
            self.columns |= found.row()
        return True

    def state(self) -> State:
        return State(self.columns)

    def restore(self, state: State) -> None:
        plain: dict[str, Any] = state.plain
        self.columns = {str(name): value + 0 for name, value in plain.items()}  # refuses what is not a number
