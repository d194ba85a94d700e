"""A run: built or resumed, driven to its end, saved on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from dcpg.config.build import EnvMaker, augmenter_of, build_network, make_train, protocol_of, splits, train_levels
from dcpg.config.schema import Config
from dcpg.config.written import fingerprint
from dcpg.core.algorithm import Algorithm
from dcpg.core.buffer import Buffer
from dcpg.core.collector import collect, with_rewards
from dcpg.core.episodes import EpisodeCounter
from dcpg.core.evaluation import play
from dcpg.core.rewards import RewardNormaliser
from dcpg.core.rollout import Rollout
from dcpg.core.targets import with_targets
from dcpg.envs.base import Spaces, VectorEnv
from dcpg.errors import BadInput, OutOfMemory, RankLost, Stopped, StorageFailed
from dcpg.machine import needs as room
from dcpg.machine.devices import device_of
from dcpg.machine.memory import keep_freed_memory, memory_was_refused
from dcpg.methods import Method
from dcpg.ranks import ALONE, Ranks
from dcpg.seeding import generator
from dcpg.storage.checkpoint import Checkpoint, CheckpointStore, Damaged
from dcpg.storage.files import write_atomic
from dcpg.storage.rows import Evaluation, Metrics, Split, Timing, read, read_rows
from dcpg.storage.rundir import RunDirectory
from dcpg.training import measure as analysis
from dcpg.training import state as snapshot
from dcpg.training.logs import Logs
from dcpg.training.observer import Mute, Silent, Watcher
from dcpg.training.stop import StopSignals, Watchdog
from dcpg.training.weights import weights_file

SAVE_TRIES = 5  # failed saves in a row before the run gives up


RETRY_SECONDS = 30.0


class Trainer:
    """One run, or one rank's part of it: what is written once, the first rank writes."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        maker: EnvMaker | None = None,
        watcher: Watcher | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self.directory, self.maker, self.ranks = config, directory, maker, ranks
        self.fingerprint = fingerprint(directory.read_config() if directory.config.exists() else config.to_json())
        self.watcher: Watcher = (watcher or Silent()) if ranks.first else Mute()
        torch.set_num_threads(config.machine.threads)
        keep_freed_memory()
        self.method = config.declared()
        self.levels = train_levels(config, ranks)
        self.augmenter = augmenter_of(config, ranks)
        self.env: VectorEnv = make_train(config, maker, self.levels, ranks)
        self.own = ranks.slice(config.env.num_envs)  # this rank's environments
        check_fit(config, self.method, self.env)
        device = device_of(config)
        self.network = build_network(config, self.env.shape, self.env.num_actions).to(device)
        self.normaliser = RewardNormaliser.fresh(config.env.num_envs)
        self.algorithm = Algorithm(
            self.method,
            config.algorithm,
            self.network,
            self._collect,
            Buffer(self.method.keep, config.rollout_length, self.env.num_envs, self.env.shape, self.env.dtype),
            seed=config.seed,
            actions=self.env.num_actions,
            chunk=config.machine.chunk,
            device=device,
            precision=config.machine.precision,
            shards=config.shards,
            ranks=ranks,
            between_steps=self._between_steps,
            before_update=self._analyse,
        )
        self.analysed: dict[str, float] = {}  # of the rollout that is being learnt from
        self.env_state = self.env.state()  # at the start of the rollout that is being collected
        self.episodes = EpisodeCounter(config.env.num_envs)
        self.store = CheckpointStore(directory.checkpoints, ranks=ranks)
        self.logs = Logs(config, directory, self.watcher.warn)
        self.signals = StopSignals()
        self.watchdog = Watchdog(directory.lock, config.env.timeout)
        needs = room.needs(config, Spaces.of(self.env)).sentence()
        self._out_of_memory = (  # made now, while there is some
            f"There was no memory left; the run needs {needs}. The last checkpoint stands: make room, then run: "
            f"{resume_command(directory.path, ranks.size)}"
        )
        self._saved_at = time.monotonic()
        self._save_failures = 0
        self._clock = time.monotonic()
        self._seconds = {"collect": 0.0, "policy": 0.0, "auxiliary": 0.0, "evaluate": 0.0, "analyse": 0.0, "save": 0.0}

    # -- the run

    def run(self, begin: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """From wherever the run stands to its end; a new run first does what `begin` says."""
        self.watcher.start(self.config, self.directory.path, self.algorithm.cursor.rollout)
        with self.signals, self.watchdog:
            try:
                begin()
                self._note_summary("running")
                self._evaluate_if_due()
                while self.algorithm.cursor.rollout < self.config.rollouts:
                    self.algorithm.rollout()
                    self._rollout_done()
                    self._evaluate_if_due()
                self.save(final=True)
            except Stopped:
                self._note_summary("stopped")
                self.save(final=True)
                raise
            except RankLost:
                raise
            except BaseException as error:
                refused = memory_was_refused(error)
                if refused:  # what was held makes room to say so
                    error.__traceback__ = None
                    self.algorithm.tau, self.algorithm.segments = None, []
                    self.algorithm.B.clear()
                with contextlib.suppress(MemoryError):
                    self._note_summary("failed")
                if refused:
                    raise OutOfMemory(self._out_of_memory) from None
                raise
            finally:
                self.watcher.close()
                self.logs.close()
                with contextlib.suppress(Exception):  # one's own environment may fail to close; the run is saved
                    self.env.close()
        return self._write_summary("finished")

    def _collect(self, rollout: int) -> Rollout:
        """Algorithm 1, line 4."""
        c = self.config
        g = generator(c.seed, "act", rollout)
        uniform = torch.rand(c.rollout_length, c.env.num_envs, generator=g, dtype=torch.float64)
        with self.watchdog.watching("the environments"):
            tau = collect(self.env, self.algorithm.actor, uniform[:, self.own], self._between_env_steps)
        self._stop_or_go_on()
        whole = self._of_all_ranks(tau)
        rewards, counts = with_rewards(whole, self.normaliser).rewards, torch.from_numpy(self.episodes.count(whole))
        rewards, counts = (x[:, self.own].contiguous() for x in (rewards, counts))
        tau = dataclasses.replace(tau, rewards=rewards, step_counts=counts)
        tau = with_targets(tau, self.method, self.ranks)
        if self.levels is not None:
            self.levels.observe(tau)
        if self.augmenter is not None:
            self.augmenter.observe(tau)
            tau = dataclasses.replace(tau, augmentation=self.augmenter.choose())
        self.env_state = self.env.state()  # with that of `levels`, which has seen tau
        self._lap("collect")
        return tau

    def _of_all_ranks(self, tau: Rollout) -> Rollout:
        """tau with what every rank must know of all environments."""
        if self.ranks.alone:
            return tau
        columns = self.ranks.columns
        return dataclasses.replace(
            tau,
            raw_rewards=columns(tau.raw_rewards),
            dones=columns(tau.dones),
            valid=columns(tau.valid),
            levels=columns(tau.levels),
        )

    def _analyse(self, tau: Rollout) -> None:
        """What the configuration asks to be measured; after a resume in the middle of it, all of it again."""
        self.analysed, c = {}, self.config
        if not c.analyse or self.algorithm.cursor.rollout % c.analyse_every:
            return
        self.analysed = analysis.live(c, self.method, self.network, tau, self._between_analysis_chunks)
        self._lap("analyse")

    def _rollout_done(self) -> None:
        c, at = self.config, self.algorithm.cursor
        self.algorithm.check_finite()
        steps = at.rollout * c.rollout_size
        more = {
            **(self.levels.row() if self.levels is not None else {}),
            **(self.augmenter.row() if self.augmenter is not None else {}),
            **self.analysed,
            **self.algorithm.row(),
        }
        row = Metrics(
            rollout=at.rollout, steps=steps, **self.episodes.row(), reward_variance=self.normaliser.var, more=more
        )
        self.directory.metrics.append(row)
        self._lap(self._phase())
        took = sum(self._seconds.values())
        speed = c.rollout_size / took if took else 0.0
        self.directory.timing.append(Timing(steps=steps, steps_per_s=speed, seconds=self._seconds))
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self.logs.row(row, speed)
        self.watcher.row(row, speed)
        if c.keep_every and steps // c.keep_every > (steps - c.rollout_size) // c.keep_every:
            self._milestone(steps)
        if self.method.auxiliary_phase and at.rollout % self.method.N_pi == 0:
            self.save()

    def _milestone(self, steps: int) -> None:
        if not self.ranks.first:
            return
        try:
            self.directory.milestones.mkdir(exist_ok=True)
            write_atomic(self.directory.milestones / f"{steps:012d}.safetensors", weights_file(self.network))
            state = {
                "steps": steps,
                "normaliser": self.normaliser.state(),
                "evaluations": self.directory.evaluations.count,
            }
            self.directory.write_json(self.directory.milestones / f"{steps:012d}.json", state)
        except (OSError, StorageFailed) as error:
            self.watcher.warn(f"The milestone at {steps} steps was not written ({error}).")

    # -- evaluation

    def evaluation_due(self, rollout: int) -> bool:
        """After the 1st, 11th, 21st, ... rollout and after the last (authors' code: updates 0, 10, 20, ...)."""
        return rollout > 0 and ((rollout - 1) % self.config.evaluation.every == 0 or rollout == self.config.rollouts)

    def _evaluate_if_due(self) -> None:
        at, c = self.algorithm.cursor, self.config
        if at.line != 0 or not self.evaluation_due(at.rollout):
            return
        k = self._evaluations_before(at.rollout)
        if self.directory.evaluations.count > k:
            return  # it was done before the run was stopped
        splits: dict[str, Split] = {}
        if self.ranks.first:
            with contextlib.suppress(Stopped):  # the ranks stop together, below
                splits = self.evaluate(k)
        self._stop_or_go_on()
        row = Evaluation(k=k, rollout=at.rollout, steps=at.rollout * c.rollout_size, splits=splits)
        self.directory.evaluations.append(row)
        self._lap("evaluate")
        self.logs.evaluation(row)
        self.watcher.evaluation(row)

    def evaluate(self, k: int) -> dict[str, Split]:
        """Evaluation k: training levels, and unseen levels where the environment has them."""
        protocol = protocol_of(self.config)
        found: dict[str, Split] = {}
        for split, make in splits(self.config, self.maker).items():
            with self.watchdog.watching(f"the environments of the {split} evaluation"):
                env = make(self.config.evaluation.episodes, k)
                try:
                    key = (self.config.seed, "eval", split, k)
                    episodes = play(env, self.algorithm.actor, self.normaliser, protocol, key, self._between_eval_steps)
                finally:
                    env.close()
            found[split] = Split(**episodes.row())
        return found

    # -- saving

    def save(self, final: bool = False) -> None:
        """Save now. A disk that refuses is a warning; one that goes on refusing ends the run."""
        self.algorithm.check_finite()
        tries = SAVE_TRIES if final else 1
        for attempt in range(tries):
            try:
                self._save()
                self._save_failures = 0
                return
            except OSError as error:
                self._save_failures += 1
                self.watcher.warn(f"The checkpoint could not be written ({error}); the one before it stands.")
                if self._save_failures >= SAVE_TRIES or (final and attempt == tries - 1):
                    raise StorageFailed(
                        f"{self.directory.path} could not be written to {self._save_failures} times ({error}). Make "
                        f"room, then run: {resume_command(self.directory.path, self.ranks.size)}"
                    ) from None
                if final:
                    time.sleep(1)
            finally:
                self._saved_at = time.monotonic()

    def _save(self) -> None:
        a, at = self.algorithm, self.algorithm.cursor
        self.ranks.first_does(self.directory.sync_rows)
        steps = at.rollout * self.config.rollout_size  # of whole rollouts, so that names sort as the cursor moves
        state = {
            "steps": steps,
            "normaliser": self.normaliser.state(),
            "episodes": self.episodes.state(),
            "analysed": self.analysed,
            "augmenter": self.augmenter.state() if self.augmenter is not None else None,
            "rows": {"metrics": self.directory.metrics.count, "eval": self.directory.evaluations.count},
        }
        meta = {
            "method": self.config.method,
            "config": self.fingerprint,
            "steps": steps,
            "phase_end": at.line == 0 and not a.B.rollouts,
            "processes": self.ranks.size,
            "versions": versions(),
        }
        name = f"{steps:012d}-{at.line:02d}.{at.epoch:03d}.{at.minibatch:06d}-{self.directory.evaluations.count:05d}"
        self.store.save(name, snapshot.own_files(a, self.env_state, state), snapshot.shared_files(a), meta)
        self._lap("save")

    def restore(self) -> None:
        """The newest valid checkpoint's state; rows that come after it are dropped."""
        found: dict[str, Any] = {}

        def accept(checkpoint: Checkpoint) -> None:
            meta = checkpoint.meta
            if meta.get("method") != self.config.method or meta.get("config") != self.fingerprint:
                raise Damaged(f"it is of another method or configuration ({meta.get('method')})")
            made_by = int(meta.get("processes", 1))
            if made_by != self.ranks.size:
                raise BadInput(
                    f"{self.directory.path} was made by {made_by} processes, not by {self.ranks.size}; go on with: "
                    f"{resume_command(self.directory.path, made_by)}"
                )
            state, envs = snapshot.restore(self.algorithm, checkpoint)
            found["versions"] = meta.get("versions")
            try:
                for key, rows in (("metrics", self.directory.metrics), ("eval", self.directory.evaluations)):
                    needed = self._rows_needed(key, int(state["rows"][key]))
                    if len(read_rows(rows.path)) < needed:
                        raise Damaged(f"{rows.path.name} lacks rows that it follows")
                self.normaliser = RewardNormaliser.restored(state["normaliser"])
                if self.normaliser.sums.shape != (self.config.env.num_envs,):
                    raise ValueError("the reward normaliser is of another number of environments")
                self.episodes.restore(state["episodes"])
                self.analysed = {str(name): value + 0 for name, value in state["analysed"].items()}  # numbers alone
                if self.augmenter is not None:
                    self.augmenter.restore(state["augmenter"])
                    tau = self.algorithm.tau
                    if tau is not None:
                        self.algorithm.tau = dataclasses.replace(tau, augmentation=self.augmenter.choose())
                self.env.restore(envs)
                if not self.env.exact_state:
                    self.episodes.begin_anew()
                    self.normaliser.sums[:] = 0
            except snapshot.STRANGE as error:
                raise Damaged(f"it does not hold this run's state ({type(error).__name__}: {error})") from None
            self.env_state = envs
            found.update(state)

        self.store.newest_valid(accept, self.watcher.warn)
        steps = self.algorithm.cursor.rollout * self.config.rollout_size
        if self.algorithm.cursor.rollout > self.config.rollouts:
            raise BadInput(f"{self.directory.path} has made {steps} steps already; ask for more.")
        if found["versions"] != versions():
            self.watcher.warn(
                "Other versions of Python or its packages made this checkpoint; results may differ in the last bits."
            )
        if not self.env.exact_state:
            self.watcher.warn(
                "This environment cannot save its state: new episodes begin here, so the resume is not exact."
            )
        try:
            self.directory.metrics.truncate(int(found["rows"]["metrics"]))
            self._keep_evaluations(int(found["rows"]["eval"]))
            timing = [row for row in read_rows(self.directory.timing.path) if row.get("steps", 0) <= steps]
            self.directory.timing.truncate(len(timing))
        except OSError as error:
            raise StorageFailed(
                f"{self.directory.path} cannot be written to ({error}); make room and try again."
            ) from None
        self.logs.purge(
            steps, read(self.directory.metrics.path, Metrics), read(self.directory.evaluations.path, Evaluation)
        )

    def _rows_needed(self, key: str, count: int) -> int:
        """Rows that a checkpoint cannot do without: its own evaluation can come again, being a pure function."""
        if count < 0:
            raise ValueError("a negative number of rows")
        at = self.algorithm.cursor
        return min(count, self._evaluations_before(at.rollout)) if key == "eval" and at.line == 0 else count

    def _evaluations_before(self, rollout: int) -> int:
        return sum(self.evaluation_due(r) for r in range(1, rollout))

    def _keep_evaluations(self, count: int) -> None:
        """Keep so many rows, less a final one that a longer run would not have."""
        rows = read(self.directory.evaluations.path, Evaluation)[:count]
        while rows and not self.evaluation_due(rows[-1].rollout):
            rows.pop()
        self.directory.evaluations.truncate(len(rows))

    # -- between steps

    def _between_steps(self) -> None:
        """Every rank stands at the same place: they stop or save together."""
        self._lap(self._phase())
        self.watcher.progress(self._phase(), self._place())
        wait = RETRY_SECONDS if self._save_failures else 60 * self.config.checkpoints.minutes
        if self._stop_or_go_on(due=time.monotonic() - self._saved_at > wait):
            self.save()

    def _between_env_steps(self) -> None:
        """Ranks collect at their own pace, and meet again when all have their part of tau."""
        if self.ranks.alone:
            self._between_steps()
        else:
            self.watchdog.alive()
            self.watcher.progress("collect", "")

    def _between_analysis_chunks(self) -> None:
        self._stop_if_asked()
        self.watcher.progress("analyse", "")

    def _between_eval_steps(self) -> None:
        self._stop_if_asked()
        self.watcher.progress("evaluate", "")

    def _stop_or_go_on(self, due: bool = False) -> bool:
        """Stop if any rank was asked to; else, whether any finds something due."""
        self.watchdog.alive()
        stop, due = self.ranks.any(self.signals.asked is not None, due)
        if stop:
            self._stop()
        return due

    def _stop_if_asked(self) -> None:
        self.watchdog.alive()
        if self.signals.asked:
            self._stop()

    def _stop(self) -> NoReturn:
        by = self.signals.asked or "another process"
        command = resume_command(self.directory.path, self.ranks.size)
        raise Stopped(f"Stopped by {by} and saved; go on with: {command}")

    def _place(self) -> str:
        """Where in a line the loop stands."""
        at = self.algorithm.cursor
        return f"epoch {at.epoch + 1}, minibatch {at.minibatch + 1}" if at.line > 0 else ""

    def _phase(self) -> str:
        line = self.algorithm.cursor.line
        return "collect" if line == 0 else "policy" if line <= len(self.method.policy_phase) else "auxiliary"

    def _lap(self, name: str) -> None:
        now = time.monotonic()
        self._seconds[name] += now - self._clock
        self._clock = now

    def _note_summary(self, status: str) -> None:
        """A summary on the way, once the run exists; a disk that refuses it now does not end the run."""
        if self.directory.config.exists():
            with contextlib.suppress(StorageFailed):
                self._write_summary(status)

    def _write_summary(self, status: str) -> dict[str, Any]:
        rows = read(self.directory.evaluations.path, Evaluation)
        last = rows[-1].plain() if rows else {}
        steps = self.algorithm.cursor.rollout * self.config.rollout_size
        summary = {
            "method": self.config.method,
            "game": self.config.game,
            "seed": self.config.seed,
            "steps": steps,
            "steps_asked": self.config.steps,
            "status": status,
            "train_return": last.get("train_return"),
            "test_return": last.get("test_return"),
            "train_returns": last.get("train_returns"),
            "test_returns": last.get("test_returns"),
        }
        self.directory.write_json(self.directory.summary, summary)
        return summary


def resume_command(directory: Path, processes: int) -> str:
    """What goes on with a run."""
    program = "dcpg" if processes == 1 else f"torchrun --nproc-per-node {processes} -m dcpg"
    return f"{program} resume {directory}"


def check_fit(config: Config, method: Method, env: VectorEnv) -> None:
    """Whether the environment has what the method asks for."""
    if method.needs_levels and not env.has_levels:
        raise BadInput(
            f"{config.method} must know the level of each state: give it as info['level_seed'] from reset and step."
        )
    height, width, channels = env.shape if len(env.shape) == 3 else (0, 0, 0)
    if method.augmented and not (height == width >= 16 and channels == 3 and env.dtype == np.uint8):
        raise BadInput(
            f"augment={config.augment} needs square colour images, uint8 and at least 16 x 16; this environment's "
            f"observations are {env.dtype} {env.shape}."
        )


def versions() -> dict[str, str]:
    """What computed the run."""
    from importlib.metadata import version

    names = ("dcpg", "torch", "numpy", "procgen-mirror", "gymnasium")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
