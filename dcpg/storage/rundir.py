"""A run's directory: its paths, its rows and its summary."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from dcpg.errors import BadInput, StorageFailed, Unavailable
from dcpg.storage.checkpoint import FILE, FIRST_CHECKPOINT, SET_ASIDE
from dcpg.storage.files import AWAY, Unreadable, UnreadableNow, discard, dump, own_folder, read_json, write_atomic
from dcpg.storage.lock import Lock
from dcpg.storage.rows import Rows
from dcpg.text import option, resume_call

MOST_CONFIGURATION = 64_000_000  # bytes; enough for the longest list of levels


class RunDirectory:
    """The paths of a run, and its rows. Of several processes only one writes; the others count its rows."""

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self._writer = path, os.getpid() if writes else None
        self.config = path / "config.json"
        self.summary = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        self.milestones = path / "milestones"
        self.tensorboard = path / "tb"
        self.analysis = path / "analysis"
        self.metrics = Rows(path / "metrics.jsonl", writes)
        self.evaluations = Rows(path / "eval.jsonl", writes)
        self.rows = {"metrics": self.metrics, "eval": self.evaluations}  # which follow from the seed
        self.timing = Rows(path / "timing.jsonl", writes)
        self.lock = Lock(path / "lock")
        self._made = self._created = False

    @property
    def _folders(self) -> tuple[Path, ...]:
        """Those that a run and its commands write into: none may be a link."""
        shared, wandb = self.checkpoints / "shared", self.path / "wandb"
        return self.checkpoints, shared, self.milestones, self.tensorboard, self.analysis, wandb

    @property
    def writes(self) -> bool:
        """False in a child that an environment forked, too: however it ends, the run's files are its parent's."""
        return self._writer == os.getpid()

    def check_usable(self) -> None:
        """Refuse a directory for a new run that is not free, cannot be written to or is in use; nothing is created."""
        self.check_free()
        place = self.path.absolute()
        there = next(one for one in (place, *place.parents) if os.path.exists(one))
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            raise self._unwritable(error) from None
        if there == place:
            self.check_unused()

    def check_unused(self) -> None:
        """Refuse a directory that another process is training in."""
        self.lock.acquire()
        self.lock.release()

    def check_free(self) -> None:
        """Refuse a directory that already holds a run or files in its places, or is none."""
        try:
            self._check_free()
        except OSError as error:  # a name that is too long, for example, or a folder that may not be entered
            raise self._unwritable(error) from None

    def _check_free(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise BadInput(f"{self.path} is a file; choose another {option('out')}.")
        if self.config.exists() or any(p.name[:12] != "0" * 12 for p in self._checkpointed()):
            raise BadInput(
                f"{self.path} already holds a run; continue it with {resume_call(self.path)} or choose another "
                f"{option('out')}."
            )
        for folder in self._folders:
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                raise BadInput(f"{folder} is a link or a file; choose another {option('out')}.")
        for place in self.checkpoints.iterdir() if self.checkpoints.is_dir() else ():
            if not self._is_left_over(place):
                raise BadInput(f"{place} already exists, from something else; choose another {option('out')}.")
        files = (self.metrics.path, self.evaluations.path, self.timing.path, self.summary, self.lock.path)
        taken = [path for path in (*files, self.path / "curves.png", self.path / "replay.mp4") if os.path.lexists(path)]
        taken += [path for path in (self.milestones, self.analysis) if path.is_dir() and any(path.iterdir())]
        for path in taken:
            if path != self.lock.path or not self.lock.is_ours():
                raise BadInput(f"{path} already exists, from a run or something else; choose another {option('out')}.")

    def _is_left_over(self, place: Path) -> bool:
        """Whether a run that was killed at its start has left this in `checkpoints`: `create` removes it."""
        if place.is_symlink() or not place.is_dir():
            return False
        inside = list(place.iterdir())
        if place.name == "shared":
            return not inside
        return place.name.removeprefix(".tmp-").removeprefix(SET_ASIDE) == FIRST_CHECKPOINT and all(
            _is_of_a_checkpoint(one.name.removeprefix(".tmp-")) and one.is_file() and not one.is_symlink()
            for one in inside
        )

    def _unwritable(self, error: OSError) -> BadInput:
        return BadInput(f"{self.path} cannot be written to ({error.strerror}); choose another {option('out')}.")

    def prepare(self) -> None:
        """Create the directory itself, so that it can be locked."""
        try:
            self._made = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None

    def create(self) -> None:
        """Set up a new run in the locked directory; one that already holds a run is refused."""
        self.check_free()
        try:
            # config.json is written last: a run that was killed before that does not exist
            discard(self.checkpoints)
            own_folder(self.checkpoints)
        except OSError as error:
            raise self._unwritable(error) from None
        self._created = True

    def _checkpointed(self) -> list[Path]:
        return [p for p in self.checkpoints.iterdir() if p.name[0].isdigit()] if self.checkpoints.is_dir() else []

    @property
    def is_new(self) -> bool:
        """Whether a run is being made here that has not begun."""
        return self._made or self._created

    def undo(self) -> None:
        """Remove what a run that was refused before it began has created, and nothing else; see `keep`."""
        if not self.writes:
            return
        if self._created:
            for path in (self.config, self.summary, self.checkpoints):  # the first may be there, if it was not synced
                discard(path)
        with contextlib.suppress(OSError):  # somebody has moved it
            if self._made and not [p for p in self.path.iterdir() if p != self.lock.path]:
                discard(self.path)

    def keep(self) -> None:
        """The run has begun: whatever happens to its files, `undo` removes nothing any more."""
        self._made = self._created = False

    def sync_rows(self) -> None:
        """Make the rows of metrics.jsonl and eval.jsonl durable, or raise OSError."""
        self.metrics.sync()
        self.evaluations.sync()

    def read_config(self) -> dict[str, Any]:
        """The contents of config.json, as they were written."""
        try:
            found = self.path.is_dir()
        except OSError as error:
            if error.errno in AWAY:
                raise Unavailable(f"{self.path} cannot be read now ({error.strerror}).") from None
            found = False
        if not found:
            raise BadInput(f"There is no run at {self.path}.")
        try:
            links = [part for part in (*self._folders, self.lock.path) if part.is_symlink()]
        except OSError as error:  # a folder that may not be entered
            kind = Unavailable if error.errno in AWAY else BadInput
            raise kind(f"{error.filename} cannot be read ({error.strerror}).") from None
        for link in links:
            raise BadInput(f"{link} is a link; a run's files must be in its own directory.")
        try:
            plain = read_json(self.config, MOST_CONFIGURATION)
        except FileNotFoundError:
            raise BadInput(f"{self.path} holds no run: config.json is missing.") from None
        except UnreadableNow as error:
            raise Unavailable(f"{self.config} cannot be read now ({error}).") from None
        except Unreadable as error:
            raise BadInput(f"{self.config} cannot be read ({error}).") from None
        if not isinstance(plain, dict):
            raise BadInput(f"{self.config} is not a run's configuration.")
        return plain

    def write_json(self, path: Path, value: Any) -> None:
        """Write a small JSON file atomically, if this process writes."""
        if not self.writes:
            return
        try:
            write_atomic(path, dump(value, indent=2))
        except OSError as error:
            raise StorageFailed(f"{path} cannot be written ({error}).") from None


def _is_of_a_checkpoint(name: str) -> bool:
    return name == "manifest.json" or FILE.fullmatch(name) is not None
