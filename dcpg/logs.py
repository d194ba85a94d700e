"""TensorBoard always, Weights & Biases if asked for."""

from __future__ import annotations

from typing import Any

from dcpg.config import Config
from dcpg.errors import BadInput
from dcpg.rundir import RunDirectory


class Logs:
    """What the rows say, for people who look at curves."""

    def __init__(self, config: Config, directory: RunDirectory) -> None:
        self.config, self.directory = config, directory
        self._purge: int | None = None
        self._writer: Any = None
        self._wandb: Any = None
        if config.wandb:
            try:
                import wandb
            except ModuleNotFoundError:
                raise BadInput(
                    "wandb is not installed; run: pip install 'dcpg[wandb]', or leave wandb=true out."
                ) from None
            self._wandb = wandb.init(
                project="dcpg",
                name=directory.path.name,
                config=config.to_json(),
                dir=str(directory.path),
                id=f"{config.fingerprint()[:12]}-{config.seed}",
                resume="allow",
            )

    def purge(self, steps: int) -> None:
        """A resumed run writes what comes after `steps` again."""
        self._purge = steps + 1

    def row(self, row: dict[str, Any], steps_per_s: float) -> None:
        """A rollout's numbers."""
        numbers = {k: v for k, v in row.items() if isinstance(v, (int, float)) and k not in ("rollout", "steps")}
        if row["episode_returns"]:
            numbers["episode_return"] = sum(row["episode_returns"]) / len(row["episode_returns"])
        numbers["steps_per_s"] = steps_per_s
        self._add({f"training/{k}": v for k, v in numbers.items()}, row["steps"])

    def evaluation(self, row: dict[str, Any]) -> None:
        """An evaluation's numbers."""
        numbers = {k: v for k, v in row.items() if isinstance(v, float)}
        self._add({f"evaluation/{k}": v for k, v in numbers.items()}, row["steps"])

    def _add(self, numbers: dict[str, float], steps: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.directory.tensorboard), purge_step=self._purge)
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, steps)
        if self._wandb is not None:
            self._wandb.log(numbers, step=steps)

    def close(self) -> None:
        """Write out what is buffered."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._wandb is not None:
            self._wandb.finish()
