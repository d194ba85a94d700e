"""What the training loop reports while it runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from dcpg.core.rollout import Rollout


class LoopObserver:
    """Called by the loop at the points where it can be stopped, saved or measured. The default does nothing.

    An exception that it raises ends the loop there; the loop can be saved and continues from the same place.
    """

    def sampling(self) -> AbstractContextManager[None]:
        """Entered while the environments are stepped, or asked for their states."""
        return nullcontext()

    def restoring(self) -> AbstractContextManager[None]:
        """Entered while the environments return to a saved state, or begin new episodes instead."""
        return nullcontext()

    def between_environment_steps(self) -> None: ...

    def between_optimiser_steps(self) -> None: ...

    def sampled(self) -> None:
        """Called when every rank has stepped its environments, before anything of the rollout is counted."""

    def before_update(self, tau: Rollout) -> None:
        """Called with each new rollout, while the network still has the parameters that sampled it."""
