"""Starts a new run, or resumes one."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dcpg.config.build import known_spaces, spaces_of
from dcpg.config.environments import Environment, EnvMaker
from dcpg.config.schema import OWN, Config
from dcpg.config.written import (
    ENVIRONMENT,
    LATER,
    PROCGEN,
    Written,
    check_plugins,
    other_library,
    parse_written,
    read_written,
    readable,
    to_write,
)
from dcpg.envs.base import Spaces, VectorEnv
from dcpg.envs.procgen import train_seed
from dcpg.errors import BadInput
from dcpg.extras import need
from dcpg.machine.automatic import settled
from dcpg.machine.devices import device_of, has_bf16
from dcpg.machine.needs import Needs, check_address_space, check_room, missing_room, needs_of
from dcpg.methods.plugins import used
from dcpg.ranks import ALONE, Ranks
from dcpg.storage.checkpoint import Damaged
from dcpg.storage.rows import Summary, count_rows
from dcpg.storage.rundir import RunDirectory
from dcpg.text import given, printable
from dcpg.torchrun import processes
from dcpg.training.observer import RunObserver
from dcpg.training.stop import KEPT, Watchdog
from dcpg.training.trainer import Trainer, training_of
from dcpg.training.weights import load_weights, newest_weights, save_weights

UNREPEATABLE = (
    "The encoder or a head draws random numbers or changes its own buffers whenever it computes, as dropout and batch "
    "normalisation do: the run could be neither repeated nor resumed exactly"
)
NOT_BEGUN = "The run had not begun, and nothing was written."


def start(
    config: Config,
    out: Path,
    maker: EnvMaker | None = None,
    observer: RunObserver | None = None,
    init: Path | None = None,
) -> Summary:
    """Train a new run in the directory `out`, from the weights of the run `init` if one is given.

    What can be refused at once is, before anything takes time. Then the environments are made, so that a directory is
    made only for a run that can begin.
    """
    config, ranks = settled(config), _join(config)
    directory = RunDirectory(out, ranks.first)
    ranks.first_does(directory.check_usable)
    ranks.first_does(lambda: _check_extras(config))
    weights = newest_weights(init) if init is not None else None
    known = known_spaces(config)
    if known is not None:
        _check_needs(config, known, out, observer, ranks)
    with contextlib.ExitStack() as undo:
        with _watched(directory, config, maker, NOT_BEGUN):
            training = training_of(config, maker, ranks)
            undo.callback(_close, training[1])
            spaces = Spaces.of(training[1])
            if maker is not None:
                maker.check_test(spaces, train_seed(config.seed), config.env.frame_stack)
        if maker is not None:
            config = settled(config, spaces)
            _check_needs(config, spaces, out, observer, ranks)
        ranks.first_does(directory.prepare)
        ranks.first_does(directory.lock.acquire)
        undo.callback(directory.lock.release)
        undo.callback(directory.undo)
        ranks.first_does(directory.create)
        trainer = Trainer(config, directory, maker, observer, ranks, training=training)
        _warn_of_emulation(trainer)
        if weights is not None:
            try:
                load_weights(trainer.network, weights)
            except Damaged as error:
                raise BadInput(f"The weights of {init} do not fit this run: {error}.") from None
        _check_equal(trainer)
        if not _repeats_itself(trainer):
            raise BadInput(f"{UNREPEATABLE}; leave such layers out, and normalise with GroupNorm or LayerNorm.")

        def begin() -> None:  # config.json comes last: with it the run exists
            began = None if weights is None else f"{init}, weights {hashlib.sha256(weights).hexdigest()[:16]}"
            plain = to_write(trainer.config, began, Environment.of(maker, spaces) if maker is not None else None)
            trainer.pictures = [plain[PROCGEN]["pictures"]] if plain[PROCGEN] else []
            trainer.origin = parse_written(plain).origin
            trainer.logs.connect(trainer.origin)
            trainer.save(final=True)
            directory.write_json(directory.config, plain)
            directory.keep()

        return trainer.run(begin)


def resume(
    out: Path, steps: int | None = None, maker: EnvMaker | None = None, observer: RunObserver | None = None
) -> Summary:
    """Continue exactly where a run stopped; `steps` changes its total number of steps."""
    written = read_written(RunDirectory(out))
    check_plugins(written, f"{out} cannot be resumed")
    config = written.config if steps is None else dataclasses.replace(written.config, steps=steps)
    ranks = _join(config)
    directory = RunDirectory(out, ranks.first)
    with _watched(directory, config, maker):
        spaces = written.spaces or spaces_of(config, maker)
        if maker is not None:
            maker.check_test(spaces, train_seed(config.seed), config.env.frame_stack)
    ranks.first_does(directory.check_unused)
    ranks.first_does(lambda: _check_extras(config))
    check_address_space()
    done = count_rows(directory.metrics.path)
    _announce(config, spaces, needs_of(config, spaces), max(config.rollouts - done, 0), observer, ranks)
    ranks.first_does(directory.lock.acquire)
    try:
        with _watched(directory, config, maker):
            training = training_of(config, maker, ranks)
        trainer = Trainer(config, directory, maker, observer, ranks, training=training, fingerprint=written.fingerprint)
        _warn_of_emulation(trainer)
        missing = missing_room(trainer.needs, config, out)
        if missing:
            trainer.observer.warn(f"This run may not have the memory or disk that it needs: {'; '.join(missing)}.")
        _check_equal(trainer)
        with trainer.watchdog:  # the heartbeat: reading B and trying the environments' states may take minutes
            trainer.restore()
        if trainer.algorithm.cursor.rollout < trainer.config.rollouts:
            _warn_of_new_episodes(trainer)
            if not _repeats_itself(trainer):  # begun with an older release
                trainer.observer.warn(f"{UNREPEATABLE}.")
        changes = ({} if steps is None else {"steps": config.steps}) | _other_pictures(written, trainer)
        changes |= _other_environment(written, maker, trainer)
        plain = readable({**written.plain, **changes}) if changes else written.plain
        trainer.origin = parse_written(plain).origin
        trainer.logs.connect(trainer.origin)
        if changes:
            directory.write_json(directory.config, plain)
        return trainer.run()
    finally:
        directory.lock.release()


@contextlib.contextmanager
def _watched(directory: RunDirectory, config: Config, maker: EnvMaker | None, advice: str = KEPT) -> Iterator[None]:
    """Environments of your own may hang while they are made and reset; they have the time of so many of them."""
    if maker is None:
        yield
        return
    watchdog = Watchdog(directory.lock, config.env.timeout, advice)
    with watchdog, watchdog.watching("your environment's first reset", config.env.num_envs):
        yield


def _warn_of_emulation(trainer: Trainer) -> None:
    if trainer.config.machine.precision == "bf16" and not has_bf16(device_of(trainer.config)):
        trainer.observer.warn(
            "This device has no instructions for bfloat16 and emulates it, many times slower than float32; a new run "
            f"with {given('machine.precision', 'fp32')} is faster."
        )


def _warn_of_new_episodes(trainer: Trainer) -> None:
    if not trainer.env.exact_state:
        trainer.observer.warn(
            "This environment cannot save its state: new episodes begin here, so the resume is not exact."
        )


def _other_pictures(written: Written, trainer: Trainer) -> dict[str, Any]:
    """What config.json adds when Procgen draws the run's game otherwise here than where it was trained so far."""
    trainer.pictures = [one["pictures"] for one in written.libraries]
    other = other_library(written)
    if other is None or trainer.is_over:  # no frame is seen any more
        return {}
    trainer.observer.warn(
        f"Procgen draws {written.config.game} otherwise here ({other['library']}) than where this run was trained so "
        f"far ({written.libraries[-1]['library']}): it goes on with slightly other pictures, and its summary says so."
    )
    trainer.pictures.append(other["pictures"])
    return {LATER: [*written.libraries[1:], other]}


def _other_environment(written: Written, maker: EnvMaker | None, trainer: Trainer) -> dict[str, Any]:
    """What config.json adds when your own environment is another one than so far, or was moved or changed."""
    before = written.environment
    if maker is None or before is None:
        return {}
    after = before.resumed_with(maker)
    if after == before or trainer.is_over:
        return {}
    if not before.is_same(maker):
        was, now = (" and ".join(printable(id_) for id_ in ids if id_) for ids in (before.ids, maker.ids))
        trainer.observer.warn(
            f"{trainer.directory.path} was trained on {was} so far and goes on with {now}; reports say so."
        )
    elif before.changed(maker):
        trainer.observer.warn(
            f"{printable(maker.id)} was changed since this run was trained on it: it goes on with the environment as "
            "it is now, and reports say so."
        )
    return {ENVIRONMENT: after.plain()}


def _repeats_itself(trainer: Trainer) -> bool:
    """Whether the networks of a plugin give the same for the same frames, and leave everything as it was."""
    c, actor = trainer.config, trainer.evaluations.actor
    if not used(c.method, c.network.encoder):
        return True
    frames, _ = trainer.env.observe()
    before, weights = torch.get_rng_state(), save_weights(trainer.network)
    first, second = ([policy, *values.values()] for policy, values in (actor(frames), actor(frames)))
    is_same = all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(first, second, strict=True))
    is_same &= torch.equal(before, torch.get_rng_state()) and weights == save_weights(trainer.network)
    torch.set_rng_state(before)
    load_weights(trainer.network, weights)
    return is_same


def _close(env: VectorEnv) -> None:
    with contextlib.suppress(Exception):  # the user's environment may fail to close, and a trainer closes it too
        env.close()


def _check_needs(config: Config, spaces: Spaces, out: Path, observer: RunObserver | None, ranks: Ranks) -> None:
    """Refuse a run for which there is no room, and announce what it needs."""
    needs = needs_of(config, spaces)
    ranks.first_does(lambda: check_room(needs, config, out))
    check_address_space()
    _announce(config, spaces, needs, config.rollouts, observer, ranks)


def _announce(
    config: Config, spaces: Spaces, needs: Needs, rollouts: int, observer: RunObserver | None, ranks: Ranks
) -> None:
    """Before the lock is taken: an estimate of the time may take some itself."""
    if observer is not None and ranks.first:
        observer.announce(config, spaces, needs, rollouts)


def _check_extras(config: Config) -> None:
    if config.wandb:
        need("wandb", "wandb=true")


def _join(config: Config) -> Ranks:
    """Join the processes of this run; a configuration that they cannot share is refused."""
    if processes() == 1:
        return ALONE
    if config.shards != processes():
        raise BadInput(
            f"shards={config.shards}, but torchrun started {processes()} processes; start as many as there are shards "
            "(1, 2 or 4)."
        )
    undivided = {
        "your own environment": config.game.startswith(OWN),
        "levels.sampler=prioritised": config.levels.sampler == "prioritised",
        "analyse": bool(config.analyse),
    }
    for what, wanted in undivided.items():
        if wanted:
            raise BadInput(f"{what} needs the whole rollout in one process; train without torchrun.")
    return Ranks.join(device_of(config))


def _check_equal(trainer: Trainer) -> None:
    """Refuse processes that were given different configurations or start from different weights."""
    if trainer.ranks.alone:
        return
    weights = hashlib.sha256(save_weights(trainer.network)).hexdigest()
    everyone = trainer.ranks.together(lambda: [trainer.fingerprint, trainer.config.steps, weights])
    if any(one != everyone[0] for one in everyone):
        raise BadInput(
            "The processes of this run were given different configurations or weights; give all of them the same "
            "command (and machine.threads, if their machines differ)."
        )
