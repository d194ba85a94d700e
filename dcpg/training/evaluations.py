"""When a run is evaluated while it trains, and how."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from dcpg.config.build import protocol_of, splits
from dcpg.config.environments import EnvMaker
from dcpg.config.schema import Config
from dcpg.core.actor import Actor
from dcpg.core.evaluation import play
from dcpg.core.rewards import RewardNormaliser
from dcpg.storage.rows import Split


class Evaluations:
    """The evaluations of a run: each is a pure function of weights, reward variance, seed, number and episodes."""

    def __init__(self, config: Config, maker: EnvMaker | None, actor: Actor, normaliser: RewardNormaliser) -> None:
        self.config, self.maker, self.actor, self.normaliser = config, maker, actor, normaliser

    def due(self, rollout: int) -> bool:
        """After the 1st, 11th, 21st, ... rollout and after the last (authors' code: updates 0, 10, 20, ...)."""
        return rollout > 0 and ((rollout - 1) % self.config.evaluation.every == 0 or rollout == self.config.rollouts)

    def before(self, rollout: int) -> int:
        """The number of evaluations before the one after `rollout`."""
        return sum(self.due(r) for r in range(1, rollout))

    def play(
        self,
        k: int,
        steps: int,
        watching: Callable[[str], AbstractContextManager[None]],
        between_steps: Callable[[], None],
    ) -> dict[str, Split]:
        """Play evaluation k, after `steps`, on training levels, and on unseen levels where the environment has them."""
        c, found = self.config, dict[str, Split]()
        for split, make in splits(c, self.maker).items():
            with watching(f"the environments of the {split} evaluation"):
                env = make(c.episodes_after(steps), k)
                try:
                    key = (c.seed, "eval", split, k)
                    episodes = play(env, self.actor, self.normaliser, protocol_of(c), key, between_steps)
                finally:
                    env.close()
            found[split] = Split(**episodes.row())
        return found
