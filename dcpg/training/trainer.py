"""Trains a run from its current position to its end, with evaluations, saves and stops on the way."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Literal, NoReturn

import torch
from msgspec import UNSET, UnsetType

from dcpg.config.build import augmenter_of, build_network, check_fits, make_train, train_levels
from dcpg.config.command import resume_command
from dcpg.config.environments import EnvMaker
from dcpg.config.schema import Config
from dcpg.config.written import fingerprint as fingerprint_of
from dcpg.core.actor import Actor
from dcpg.core.algorithm import Algorithm
from dcpg.core.buffer import Buffer
from dcpg.core.collector import Collector
from dcpg.core.loader import Loader
from dcpg.core.observer import LoopObserver
from dcpg.core.rollout import FrameShape, Rollout
from dcpg.core.state import Stateful
from dcpg.core.stepper import Stepper
from dcpg.envs.base import Spaces, VectorEnv
from dcpg.envs.levels import LevelChooser
from dcpg.errors import OutOfMemory, RankLost, Stopped, StorageFailed
from dcpg.machine.automatic import settled
from dcpg.machine.devices import device_of, prepare
from dcpg.machine.memory import keep_freed_memory, memory_was_refused
from dcpg.machine.needs import needs_of
from dcpg.ranks import ALONE, Ranks
from dcpg.storage.files import own_folder, write_atomic
from dcpg.storage.rows import SPLITS, Evaluation, Metrics, Split, Summary, Timing, read_last
from dcpg.storage.rundir import RunDirectory
from dcpg.training.evaluations import Evaluations
from dcpg.training.logs import Logs, Stopwatch
from dcpg.training.measure import Measurements
from dcpg.training.observer import Observer, RunObserver, SilentObserver
from dcpg.training.saving import Saver
from dcpg.training.stop import StopSignals, Watchdog
from dcpg.training.weights import save_weights

Training = tuple[LevelChooser | None, VectorEnv]  # the training environments and who chooses their levels


def training_of(config: Config, maker: EnvMaker | None, ranks: Ranks = ALONE) -> Training:
    """The training environments of a run; those that do not provide what the method needs are refused."""
    levels = train_levels(config, ranks)
    env = make_train(config, maker, levels, ranks)
    try:
        check_fits(config, env)
    except BaseException:
        env.close()
        raise
    return levels, env


class Trainer(LoopObserver):
    """One run, or one rank's part of it. Only the first rank writes the files of the run."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        maker: EnvMaker | None = None,
        observer: RunObserver | None = None,
        ranks: Ranks = ALONE,
        *,
        training: Training | None = None,  # the environments, if they are made already
        fingerprint: str | None = None,  # of config.json as it was written; checkpoints record it
    ) -> None:
        self.directory, self.ranks, self._own, self._pid = directory, ranks, maker is not None, os.getpid()
        self.observer: RunObserver = (observer or SilentObserver()) if ranks.first else Observer()
        torch.set_num_threads(config.machine.threads)
        keep_freed_memory()
        levels, env = training or training_of(config, maker, ranks)
        self.env, spaces = env, Spaces.of(env)
        config = self.config = settled(config, spaces)
        self.method, machine, device = config.declared(), config.machine, device_of(config)
        prepare(device)
        self.needs = needs_of(config, spaces)
        self.resume_command = resume_command(config, directory.path, ranks.size, maker)
        self.network = build_network(config, env.shape, env.num_actions).to(device)
        actor = Actor(self.network, tuple(self.method.targets), machine.chunk, device)
        self.signals, self.watchdog = StopSignals(), Watchdog(directory.lock, config.env.timeout)
        with self.watchdog:  # the environments' states are read for the first time
            self.collector = Collector(
                env, actor, self.method, seed=config.seed, length=config.rollout_length, levels=levels,
                augmenter=augmenter_of(config, ranks), ranks=ranks, observer=self,
            )  # fmt: skip
        frames = FrameShape(config.rollout_length, env.num_envs, spaces.single, env.dtype, env.stack)
        loader = Loader(
            seed=config.seed, num_envs=env.num_envs, actions=env.num_actions, device=device, shards=config.shards,
            ranks=ranks,
        )  # fmt: skip
        stepper = Stepper(self.method, config.algorithm, self.network, chunk=machine.chunk, device=device, ranks=ranks)
        buffer = Buffer(self.method.keep, tuple(self.method.targets), frames)
        self.algorithm = Algorithm(self.method, self.collector, loader, stepper, buffer, self)
        self.measurements = Measurements(config, self.network, env.num_actions)
        self.evaluations = Evaluations(config, maker, actor, self.collector.normaliser)
        parts: dict[str, Stateful] = {
            "weights": self.network, "adam": stepper, "collector": self.collector, "algorithm": self.algorithm,
            "measurements": self.measurements,
        }  # fmt: skip
        self.fingerprint = fingerprint or fingerprint_of(config.to_json())
        self.saver = Saver(
            config, self.fingerprint, directory, parts, self.algorithm, self.evaluations, self._warn, ranks,
            self.resume_command, self.needs,
        )  # fmt: skip
        self.logs = Logs(config, directory, self._warn)
        self.stopwatch = Stopwatch()
        self.pictures: list[str] = []  # fingerprints of the frames that this run has seen, for the summary
        self.origin: str | UnsetType = UNSET  # `Written.origin`, for the summary

    def _warn(self, message: str) -> None:
        self.observer.warn(message)

    # -- the run

    def run(self, begin: Callable[[], None] = lambda: None) -> Summary:
        """Train from the current position to the end; `begin` saves and writes down a new run first."""
        self.observer.start(self.config, self.directory.path, self.algorithm.cursor.rollout)
        # prepared now, while there is memory for it
        needed = f"There was no memory left; the run needs {self.needs.sentence()}."
        out_of_memory = f"{needed} {self.saver.advice('free some memory')}"
        with self.signals, self.watchdog:
            try:
                begin()
                out_of_memory = f"{needed} {self.saver.advice('free some memory')}"
                self._write_interim_summary("running")
                self._evaluate_if_due()
                while self.algorithm.cursor.rollout < self.config.rollouts:
                    self.algorithm.rollout()
                    self._finish_rollout()
                    self._evaluate_if_due()
                self.save(final=True)
                summary = self._write_summary("finished")
            except Stopped:
                self._write_interim_summary("stopped")
                self.save(final=True)
                raise
            except RankLost:
                raise
            except BaseException as error:
                refused = memory_was_refused(error)
                if refused:  # free what is held, to have memory for the message
                    error.__traceback__ = None
                    self.algorithm.tau = None
                    self.algorithm.B.clear()
                with contextlib.suppress(MemoryError):
                    self._write_interim_summary("failed")
                if refused:
                    raise OutOfMemory(out_of_memory) from None
                raise
            finally:
                self.observer.close()
                self.logs.close()
                # the user's environment may fail to close, hand on a worker's Ctrl-C, or hang; the run is saved
                with (
                    contextlib.suppress(Exception, KeyboardInterrupt),
                    self.watchdog.watching("the environments' close()"),
                ):
                    self.env.close()
        return summary

    @property
    def steps(self) -> int:
        """Environment steps of the whole rollouts so far."""
        return self.algorithm.cursor.rollout * self.config.rollout_size

    def _finish_rollout(self) -> None:
        """Write the rollout's rows; save at the end of a phase."""
        c, at, collector = self.config, self.algorithm.cursor, self.collector
        self.algorithm.stepper.check_finite(at)
        row = Metrics(
            rollout=at.rollout,
            steps=self.steps,
            **collector.episodes.row(),
            reward_variance=collector.normaliser.var,
            more={**collector.row(), **self.measurements.columns, **self.algorithm.stepper.row()},
        )
        self.directory.metrics.append(row)
        self.stopwatch.lap(self._phase())
        seconds = self.stopwatch.take()
        took = sum(seconds.values())
        speed = c.rollout_size / took if took else 0.0
        self.directory.timing.append(Timing(steps=self.steps, steps_per_s=speed, seconds=seconds))
        self.logs.row(row, speed)
        self.observer.row(row, speed)
        if c.keep_every and self.steps // c.keep_every > (self.steps - c.rollout_size) // c.keep_every:
            self._write_milestone()
        if self.method.auxiliary_phase and self.method.ends_phase(at.rollout):
            self.save()

    def _write_milestone(self) -> None:
        if not self.ranks.first:
            return
        place = self.directory.milestones / f"{self.steps:012d}"
        weights = save_weights(self.network)
        state = {
            "steps": self.steps,
            "normaliser": self.collector.normaliser.state(),
            "evaluations": self.directory.evaluations.count,
            "sha256": hashlib.sha256(weights).hexdigest(),
            "config": self.fingerprint,
        }
        try:
            own_folder(place.parent)
            write_atomic(place.with_suffix(".safetensors"), weights)
            self.directory.write_json(place.with_suffix(".json"), state)
        except (OSError, StorageFailed) as error:
            self._warn(f"The milestone at {self.steps} steps was not written ({error}).")

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to play: no rollout, and no evaluation."""
        return self.algorithm.cursor.rollout >= self.config.rollouts and self._evaluation_due() is None

    def _evaluation_due(self) -> int | None:
        """The number of the evaluation to play now; None also if it was played before the run was stopped."""
        at = self.algorithm.cursor
        if at.line != 0 or not self.evaluations.due(at.rollout):
            return None
        k = self.evaluations.before(at.rollout)
        return k if self.directory.evaluations.count <= k else None

    def _evaluate_if_due(self) -> None:
        k, at = self._evaluation_due(), self.algorithm.cursor
        if k is None:
            return
        found: dict[str, Split] = {}
        if self.ranks.first:
            with contextlib.suppress(Stopped):  # the ranks stop together, below
                found = self.evaluations.play(k, self.steps, self._using, lambda: self._stop_if_asked("evaluate"))
        self._meet()
        row = Evaluation(k=k, rollout=at.rollout, steps=self.steps, splits=found)
        self.directory.evaluations.append(row)
        self.stopwatch.lap("evaluate")
        self.logs.evaluation(row)
        self.observer.evaluation(row)

    def save(self, final: bool = False) -> None:
        """Save now; see `Saver.save`."""
        self.saver.save(final)
        self.stopwatch.lap("save")

    def restore(self) -> None:
        """Return to the newest valid checkpoint."""
        self.saver.restore()
        row, evaluation = self.directory.metrics.path, self.directory.evaluations.path
        self.logs.purge(self.steps, read_last(row, Metrics), read_last(evaluation, Evaluation))

    # -- what the loop reports

    def sampling(self) -> AbstractContextManager[None]:
        return self._using("the environments")

    @contextlib.contextmanager
    def _using(self, environments: str) -> Iterator[None]:
        """While this lasts, the environments are watched, and may fail if a stop was asked for.

        Ctrl-C in a terminal, and what ends a job, reach the processes of environments as well. Ranks stop elsewhere.
        """
        try:
            with self.watchdog.watching(environments):
                yield
        except (Exception, KeyboardInterrupt):
            if self.signals.asked and self.ranks.alone:
                self._stop()
            raise

    def restoring(self) -> AbstractContextManager[None]:
        """Each of your own environments has its time. Procgen's are tried in a process that has a limit of its own."""
        return self.watchdog.watching("your environment", self.env.num_envs) if self._own else contextlib.nullcontext()

    def between_environment_steps(self) -> None:
        """Ranks sample at their own pace, and meet when all have sampled their part of tau."""
        if self.ranks.alone:
            self.between_optimiser_steps()
        else:
            self._alive()
            self.observer.progress("collect", "")

    def sampled(self) -> None:
        self._meet()

    def before_update(self, tau: Rollout) -> None:
        self.stopwatch.lap("collect")
        # an interrupted measurement is repeated in full after a resume
        if self.measurements.measure(tau, self.algorithm.cursor.rollout, lambda: self._stop_if_asked("analyse")):
            self.stopwatch.lap("analyse")

    def between_optimiser_steps(self) -> None:
        """Every rank is at the same place: they stop or save together."""
        phase, at = self._phase(), self.algorithm.cursor
        self.stopwatch.lap(phase)
        place = f"epoch {at.epoch + 1}, minibatch {at.minibatch + 1}" if at.line > 0 else ""
        if self._meet(due=self.saver.due()):
            self.save()
        self.observer.progress(phase, place)

    def _phase(self) -> str:
        line = self.algorithm.cursor.line
        return "collect" if line == 0 else "policy" if line <= len(self.method.policy_phase) else "auxiliary"

    # -- stopping

    def _meet(self, due: bool = False) -> bool:
        """Stop if any rank was asked to; otherwise return whether a save is due on any rank."""
        self._alive()
        stop, due = self.ranks.any(self.signals.asked is not None, due)
        if stop:
            self._stop()
        return due

    def _alive(self) -> None:
        """Tell the watchdog. A child that an environment forked, and that goes on here, would write the same run."""
        if os.getpid() != self._pid:
            os._exit(1)
        if torch.get_num_threads() != self.config.machine.threads:  # by an environment or an observer
            torch.set_num_threads(self.config.machine.threads)
        if torch.get_default_dtype() != torch.float32:
            torch.set_default_dtype(torch.float32)
        self.watchdog.alive()

    def _stop_if_asked(self, phase: str) -> None:
        self._alive()
        if self.signals.asked:
            self._stop()
        self.observer.progress(phase, "")

    def _stop(self) -> NoReturn:
        by = self.signals.asked or "another process"
        raise Stopped(f"Stopped by {by} and saved; continue with: {self.resume_command}")

    # -- the summary

    def _write_interim_summary(self, status: Literal["running", "stopped", "failed"]) -> None:
        """Write a summary of the unfinished run, once it exists; a failed write does not end the run."""
        if os.path.exists(self.directory.config):  # unlike Path.exists, it raises nothing
            with contextlib.suppress(StorageFailed):
                self._write_summary(status)

    def _write_summary(self, status: Literal["running", "stopped", "failed", "finished"]) -> Summary:
        last, c = read_last(self.directory.evaluations.path, Evaluation), self.config
        train, test = (last.splits.get(name) if last is not None else None for name in SPLITS)
        written = {name: rows for name, rows in self.directory.rows.items() if not rows.pending}
        summary = Summary(
            method=c.method,
            game=c.game,
            seed=c.seed,
            steps=self.steps,
            steps_asked=c.steps,
            status=status,
            train_return=train.mean if train else None,
            test_return=test.mean if test else None,
            train_returns=train.returns if train else None,
            test_returns=test.returns if test else None,
            pictures=self.pictures or UNSET,
            altered=self.saver.altered or UNSET,
            configuration=self.fingerprint,
            origin=self.origin,
            rows={name: rows.count for name, rows in written.items()} or UNSET,
            rows_sha256={name: rows.sha256 for name, rows in written.items()} or UNSET,
        )
        self.directory.write_json(self.directory.summary, summary.plain())
        return summary
