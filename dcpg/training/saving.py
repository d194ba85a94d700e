"""Saves a run, and restores it from its newest valid checkpoint."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from dcpg.config.command import started_by
from dcpg.config.schema import Config
from dcpg.config.written import decisive_settings, digest, versions
from dcpg.core.algorithm import Algorithm
from dcpg.core.cursor import Cursor
from dcpg.core.state import Stateful
from dcpg.errors import BadInput, InUse, NoValidCheckpoint, StorageFailed
from dcpg.machine.memory import memory_was_refused
from dcpg.machine.needs import Needs
from dcpg.ranks import Ranks
from dcpg.storage.checkpoint import Checkpoint, CheckpointStore, Damaged, Manifest
from dcpg.storage.rows import Rows, count_lines, hash_of_first, row_at, rows_of
from dcpg.storage.rundir import RunDirectory
from dcpg.text import counted, for_audience
from dcpg.training.evaluations import Evaluations
from dcpg.training.owner import Foreign, Owner, not_as_made
from dcpg.training.state import STRANGE, from_schema_1, pack, read_plain, unpack

SAVE_TRIES = 5  # failed saves in a row before the run gives up
RETRY_SECONDS = 30.0
BEFORE_THE_LAST = "eval before the last"  # the hash of the rows before an evaluation that may be played anew


class Saver:
    """The checkpoints of a run. `parts` is everything that has state, in the order in which it is restored."""

    def __init__(
        self,
        config: Config,
        fingerprint: str,
        directory: RunDirectory,
        parts: Mapping[str, Stateful],
        algorithm: Algorithm,
        evaluations: Evaluations,
        warn: Callable[[str], None],
        ranks: Ranks,
        resume_command: str,
        needs: Needs,
    ) -> None:
        self.resume_command = resume_command
        self.config, self.owner, self.directory, self.ranks = config, Owner(config, fingerprint), directory, ranks
        self.parts, self.algorithm, self.evaluations, self.warn = parts, algorithm, evaluations, warn
        self.store = CheckpointStore(directory.checkpoints, ranks=ranks, most=needs.checkpoint, warn=warn)
        self.most_states = needs.states
        self.altered: list[str] = []  # files whose rows were not as they had been written when the run was resumed
        self._saved_at, self._failures = time.monotonic(), 0

    @property
    def steps(self) -> int:
        """Environment steps of whole rollouts, so that the names of checkpoints sort in the order of the cursor."""
        return self.algorithm.cursor.rollout * self.config.rollout_size

    def due(self) -> bool:
        """Whether the last save is long enough ago."""
        wait = RETRY_SECONDS if self._failures else 60 * self.config.checkpoints.minutes
        return time.monotonic() - self._saved_at > wait

    def save(self, final: bool = False) -> None:
        """Save now. A failed write is a warning; repeated failures end the run."""
        self.algorithm.stepper.check_finite(self.algorithm.cursor)
        if not final:
            (is_time,) = self.ranks.any(not self._failures or self.due())
            if not is_time:  # the storage may be back after a pause; phases may be shorter than that
                return
        tries = SAVE_TRIES if final else 1
        for attempt in range(tries):
            try:
                self._save()
                self._failures = 0
                return
            except OSError as error:
                self._failures += 1
                kept = "; the one before it is kept" if self._exists() else ""
                self.warn(f"The checkpoint could not be written ({error}){kept}.")
                if self._failures >= SAVE_TRIES or (final and attempt == tries - 1):
                    raise StorageFailed(
                        f"{self.directory.path} could not be written to {self._failures} times ({error}). "
                        f"{self.advice(_cure(error))}"
                    ) from None
                if final:
                    time.sleep(1)
            finally:
                self._saved_at = time.monotonic()

    def _exists(self) -> bool:
        """Whether there is a run yet: a new one writes config.json after its first checkpoint; it may be away now."""
        return not self.directory.is_new or os.path.exists(self.directory.config)  # which raises nothing

    def advice(self, cure: str) -> str:
        """What is true and what to do after a failure."""
        if self._exists():
            return f"The last checkpoint is kept: {cure}, then run: {self.resume_command}"
        again = for_audience("give the same `dcpg train` command again", "call dcpg.train again")
        return f"The run had not begun, and there is nothing to resume: {cure}, then {again}."

    def _save(self) -> None:
        at, directory = self.algorithm.cursor, self.directory
        self.ranks.first_does(directory.sync_rows)
        rows = {name: file.count for name, file in directory.rows.items()}
        hashes = {name: file.sha256 for name, file in directory.rows.items()}
        if self._is_played_anew(at, rows["eval"]):
            hashes[BEFORE_THE_LAST] = directory.evaluations.sha256_before_last
        own, shared = pack(
            self.parts, self.ranks, self.most_states, steps=self.steps, rows=rows, rows_sha256=hashes,
            altered=self.altered, last_episodes=self.config.episodes_after(self.steps),
        )  # fmt: skip
        settings = decisive_settings(self.config)  # for the message if config.json is changed
        meta = {
            "method": self.config.method,
            "config": self.owner.fingerprint,
            "settings": settings,
            "settings_sha256": digest(settings),
            "steps": self.steps,
            "phase_end": at.line == 0 and not self.algorithm.B.rollouts,
            "processes": self.ranks.size,
            "versions": versions(),
        }
        name = f"{self.steps:012d}-{at.line:02d}.{at.epoch:03d}.{at.minibatch:06d}-{rows['eval']:05d}"
        self.store.save(name, own, shared, meta)

    def restore(self) -> None:
        """Return to the newest valid checkpoint; later rows are dropped."""
        found: dict[str, Any] = {}
        changed: list[str] = []

        def accept(checkpoint: Checkpoint) -> None:
            manifest = checkpoint.manifest
            try:
                self.owner.check(manifest)
            except Foreign as error:
                changed.extend(error.changed)
                raise
            self._check_processes(manifest)
            found["rows"], found["versions"] = self._take(checkpoint), manifest.versions
            self._check_lock()

        try:
            self.store.newest_valid(accept, self.warn)
        except NoValidCheckpoint:
            if not changed:
                raise
            raise not_as_made(self.directory.config, changed) from None
        at = self.algorithm.cursor
        if at.rollout > self.config.rollouts or (at.rollout == self.config.rollouts and at.line > 0):
            begun = ", and learns from more" if at.line > 0 else ""  # its weights are not those at these steps
            raise BadInput(f"{self.directory.path} has made {self.steps} steps already{begun}; ask for more.")
        if found["versions"] != versions():
            self.warn(
                "Other versions of Python or its packages made this checkpoint; results may differ in the last bits."
            )
        for name in self.altered:
            self.warn(
                f"{name} is not as this run wrote it: rows were changed afterwards. Training does not depend on them "
                "and goes on; reports do, and the summary says so."
            )
        self._check_lock()
        self._truncate_rows(found["rows"])

    def _check_lock(self) -> None:
        """Before anything is changed: reading may have taken long, and another process taken over meanwhile."""
        if not self.directory.lock.beat():
            raise InUse(f"Another process has taken over {self.directory.path}; nothing was changed here.")

    def _check_processes(self, manifest: Manifest) -> None:
        made_by = manifest.processes
        if made_by != self.ranks.size:
            raise BadInput(
                f"{self.directory.path} was made by {counted(made_by, 'process')}, not by {self.ranks.size}; continue "
                f"with: {started_by(made_by, f'dcpg resume {self.directory.path}')}"
            )

    def _take(self, checkpoint: Checkpoint) -> dict[str, int]:
        """Restore every part from a checkpoint; returns the numbers of rows written before it."""
        try:
            if checkpoint.manifest.schema == 1:
                checkpoint = from_schema_1(checkpoint, self.ranks, self.most_states)
            plain = read_plain(checkpoint)
            rows = {name: int(plain["rows"][name]) for name in ("metrics", "eval")}
            altered = self._check_rows(plain, rows)
            states = unpack(checkpoint, self.parts, self.ranks, self.most_states)
            for name, part in self.parts.items():
                part.restore(states[name])
        except STRANGE as error:
            if memory_was_refused(error):
                raise
            raise Damaged(f"it does not hold this run's state ({type(error).__name__}: {error})") from None
        self.altered = altered
        return rows

    def _check_rows(self, plain: Mapping[str, Any], rows: Mapping[str, int]) -> list[str]:
        """Refuse a checkpoint if rows written before it are missing; its own evaluation can be played again.

        Returns the files whose rows are not as they were written. Rows do not enter training, so that is no reason to
        stop.
        """
        at = Cursor.restored(plain["parts"]["algorithm"]["cursor"], self.algorithm.method.lines)
        if rows["metrics"] != at.rollout or rows["eval"] < 0:  # one row per rollout, so files bound the cursor
            raise ValueError(f"{rows['metrics']} rows at rollout {at.rollout}")
        altered = [str(name) for name in plain.get("altered", [])]
        for name, file in (("metrics", self.directory.metrics), ("eval", self.directory.evaluations)):
            needed = rows[name]
            there = self._evaluations_there(at, needed) if name == "eval" else count_lines(file.path)
            if there < needed and name == "eval" and at.line == 0:
                needed = min(needed, self.evaluations.before(at.rollout))
            if there < needed:
                raise Damaged(f"rows written before it are missing from {file.path.name}")
            count, key = rows[name], name
            if name == "eval" and self._was_played_anew(at, count, there, plain.get("last_episodes")):
                count, key = self.evaluations.before(at.rollout), BEFORE_THE_LAST
            if self._differ(file, count, plain.get("rows_sha256", {}).get(key), there):
                altered.append(file.path.name)
        return list(dict.fromkeys(altered))

    def _evaluations_there(self, at: Cursor, count: int) -> int:
        """The lines of eval.jsonl, up to a later evaluation in the place of the one at the checkpoint.

        A longer run drops the final evaluation of a shorter one; it may end before it is saved again. One with another
        number of episodes than the run has there now is dropped, too, and played anew.
        """
        path, before = self.directory.evaluations.path, self.evaluations.before(at.rollout)
        if at.line == 0 and count > before:
            row = row_at(path, before) or {}
            rollout, returns = row.get("rollout"), row.get("train_returns")
            if isinstance(rollout, int) and rollout > at.rollout:
                return before
            wanted = self.config.episodes_after(at.rollout * self.config.rollout_size)
            if self._is_played_anew(at, count) and isinstance(returns, list) and len(returns) != wanted:
                return before
        return count_lines(path)

    def _is_played_anew(self, at: Cursor, count: int) -> bool:
        """Whether the evaluation at a checkpoint may have been played anew since: `steps` decides its episodes."""
        asked = self.config.evaluation
        differs = asked.last_episodes not in (0, asked.episodes)
        return differs and at.line == 0 and count == self.evaluations.before(at.rollout) + 1

    def _was_played_anew(self, at: Cursor, count: int, there: int, episodes: object) -> bool:
        """Whether that evaluation is away, or has another number of episodes than when the checkpoint was made."""
        if not self._is_played_anew(at, count):
            return False
        returns = (row_at(self.directory.evaluations.path, count - 1) or {}).get("train_returns")
        return there < count or not isinstance(returns, list) or len(returns) != episodes

    def _differ(self, file: Rows, count: int, written: str | None, there: int) -> bool:
        """Whether the first rows of a file are not those that a checkpoint stands on; older ones have no hash."""
        if written is None or there < count:
            return False
        return hash_of_first(file.path, count) != written

    def _truncate_rows(self, rows: Mapping[str, int]) -> None:
        try:
            self.directory.metrics.truncate(rows["metrics"])
            # also drop a final evaluation that a longer run would not have
            at = self.algorithm.cursor
            due = self.evaluations.before(at.rollout) + self.evaluations.due(at.rollout)
            there = self._evaluations_there(at, rows["eval"])  # a last one that is missing is played again
            self.directory.evaluations.truncate(min(rows["eval"], due, there))
            timing = (row.get("steps") for row in rows_of(self.directory.timing.path))
            self.directory.timing.truncate(sum(isinstance(steps, int) and steps <= self.steps for steps in timing))
        except OSError as error:
            raise StorageFailed(
                f"{self.directory.path} cannot be written to ({error}); {_cure(error)} and try again."
            ) from None


def _cure(error: OSError) -> str:
    return "free some disk space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "see to its storage"
