"""Starting a run and going on with one."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpg.config.build import EnvMaker, known_spaces
from dcpg.config.schema import OWN, Config
from dcpg.config.written import from_json, to_write
from dcpg.envs.base import Spaces
from dcpg.errors import BadInput
from dcpg.machine import needs as room
from dcpg.machine.devices import device_of
from dcpg.ranks import ALONE, Ranks
from dcpg.storage.checkpoint import Damaged
from dcpg.storage.rundir import RunDirectory
from dcpg.torchrun import processes
from dcpg.training.observer import Watcher
from dcpg.training.trainer import Trainer, versions
from dcpg.training.weights import load_weights, newest_weights, weights_file


@dataclass(frozen=True)
class Run:
    """A run's directory and what came out."""

    directory: Path
    summary: dict[str, Any]


def start(
    config: Config, out: Path, maker: EnvMaker | None = None, watcher: Watcher | None = None, init: Path | None = None
) -> Run:
    """A new run."""
    ranks = _join(config)
    directory = RunDirectory(out, ranks.first)
    ranks.first_does(directory.prepare)
    ranks.first_does(directory.lock.acquire)
    try:
        ranks.first_does(directory.create)
        trainer = _trainer(config, directory, maker, watcher, ranks)
        if init is not None:
            try:
                load_weights(trainer.network, newest_weights(init))
            except Damaged as error:
                raise BadInput(f"--init {init} does not fit this run: {error}.") from None
        _check_equal(trainer)
        plain = to_write(config, init, versions())

        def begin() -> None:  # config.json comes last: with it the run exists
            trainer.save(final=True)
            directory.write_json(directory.config, plain)

        return Run(out, trainer.run(begin))
    except BaseException:
        if ranks.first and not directory.config.exists():
            directory.undo()
        raise
    finally:
        directory.lock.release()


def _join(config: Config) -> Ranks:
    """The processes of this run, and whether they can share this configuration."""
    if processes() == 1:
        return ALONE
    if config.shards != processes():
        raise BadInput(
            f"shards={config.shards}, but torchrun started {processes()} processes; start as many as there are shards "
            "(1, 2 or 4)."
        )
    whole = {
        "an environment of your own": config.game.startswith(OWN),
        "levels.sampler=prioritised": config.levels.sampler == "prioritised",
        "analyse": bool(config.analyse),
    }
    for what, given in whole.items():
        if given:
            raise BadInput(f"{what} needs the whole rollout in one process; train without torchrun.")
    return Ranks.join(device_of(config))


def _check_equal(trainer: Trainer) -> None:
    """Each process was told its configuration by itself, and read the weights that it starts from."""
    if trainer.ranks.alone:
        return
    weights = hashlib.sha256(weights_file(trainer.network)).hexdigest()
    everyone = trainer.ranks.together(lambda: [trainer.fingerprint, trainer.config.steps, weights])
    if any(one != everyone[0] for one in everyone):
        raise BadInput(
            "The processes of this run were given different configurations or weights; give all of them the same "
            "command (and --set machine.threads, if their machines differ)."
        )


def _trainer(
    config: Config, directory: RunDirectory, maker: EnvMaker | None, watcher: Watcher | None, ranks: Ranks
) -> Trainer:
    """A trainer that this machine has room for; one's own environment must be made before its sizes are known."""
    known = known_spaces(config)
    ranks.first_does(lambda: room.check(config, known, directory.path))
    trainer = Trainer(config, directory, maker, watcher, ranks)
    if known is None:
        try:
            room.check(config, Spaces.of(trainer.env), directory.path)
        except BadInput:
            trainer.env.close()
            raise
    return trainer


def resume(out: Path, steps: int | None = None, maker: EnvMaker | None = None, watcher: Watcher | None = None) -> Run:
    """Go on exactly where a run stopped; with `steps`, to another end."""
    plain = RunDirectory(out).read_config()
    config = from_json(plain, out / "config.json")
    if steps is not None:
        config = dataclasses.replace(config, steps=steps)
    ranks = _join(config)
    directory = RunDirectory(out, ranks.first)
    ranks.first_does(directory.lock.acquire)
    try:
        trainer = Trainer(config, directory, maker, watcher, ranks)
        lacking = room.lacking(config, Spaces.of(trainer.env), out)
        if lacking:
            trainer.watcher.warn(f"This run may not find the room that it needs: {'; '.join(lacking)}.")
        _check_equal(trainer)
        trainer.restore()
        if steps is not None:
            directory.write_json(directory.config, {**plain, "steps": steps})
        return Run(out, trainer.run())
    finally:
        directory.lock.release()
