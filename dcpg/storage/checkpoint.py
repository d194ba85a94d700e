"""Checkpoints: complete or absent, verified by hash, and made of safetensors, JSON and raw bytes only.

    checkpoints/000000016384-.../   one checkpoint: its own files and a manifest
    checkpoints/shared/             files that several checkpoints use: rollouts, pi_old's outputs; each written once

The newest valid one is found by scanning the directory, not by a pointer file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dcpg.errors import BadInput, NoValidCheckpoint, StorageFailed
from dcpg.ranks import ALONE, Ranks
from dcpg.storage.files import (
    AWAY,
    FORBIDDEN,
    Unreadable,
    discard,
    dump,
    fsync_dir,
    own_folder,
    parse_json,
    read_regular,
    write_atomic,
    write_durable,
)
from dcpg.text import counted, option, printable

SCHEMA = 4  # of new checkpoints
READABLE = (1, 2, 3, 4)
SEALED = 4  # the first whose manifest has a hash of itself


NAME = re.compile(r"[0-9]{12}[0-9.-]*")  # a copy that somebody has named .bak is not the store's
SET_ASIDE = "damaged-"  # what the name of a damaged one begins with
FIRST_CHECKPOINT = "000000000000-00.000.000000-00000"  # with which every run begins


LONGEST_NAME = 100  # characters that count


# the files that a manifest may name; envs is of schema 1
FILE = re.compile(
    r"state\.json|(weights|adam)\.safetensors|(collector|envs)(\.rank[0-9]+)?\.zst"
    r"|shared/(rollout|kept|old-policy)-[0-9]{8,}(\.rank[0-9]+)?\.(frames|safetensors)"
)


RANK = re.compile(r"\.rank([0-9]+)(?:\.|$)")


MAX_MANIFEST = 2**22
UNSEALED = "0" * 64  # what stands in a manifest while its hash is taken


EIO_PAUSES = (0.1, 0.5, 2.0)  # seconds before a file that could not be read is read again


STATE, MOST_STATE = "state.json", 2**26  # its bytes


MAX_BYTES = 2**36  # of the files of one checkpoint, unless more is known about the run


class Damaged(Exception):
    """Raised for a checkpoint that cannot be trusted; the message says why."""


class Entry(msgspec.Struct, frozen=True):
    """What a manifest says of a file."""

    size: Annotated[int, Meta(ge=0)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json, with the types that its values must have."""

    schema: int
    method: str
    config: str  # a hash of the settings
    files: dict[str, Entry]
    phase_end: bool = False
    processes: Annotated[int, Meta(ge=1)] = 1
    versions: dict[str, str] = {}
    settings: dict[str, Any] | None = None  # None: by an older release
    settings_sha256: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """The manifest and the files of a verified checkpoint."""

    name: str
    manifest: Manifest
    files: dict[str, bytes]


def position(name: str) -> tuple[list[int], str]:
    """What puts the names of checkpoints in the order of the loop, however many digits their numbers have."""
    return [int(number) for number in re.findall("[0-9]+", name[:LONGEST_NAME])], name


class CheckpointStore:
    """The checkpoints of one run; `most` is the number of bytes that a checkpoint of such a run may have."""

    def __init__(
        self,
        root: Path,
        kept: int = 2,
        ranks: Ranks = ALONE,
        most: int = MAX_BYTES,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.root, self.shared, self.kept, self.ranks = root, root / "shared", kept, ranks
        self.most, self.warn = most, warn
        self._known: dict[str, dict[str, Any]] = {}  # shared files that are intact on the disk
        self._left = set[Path]()  # what could not be removed

    # -- writing

    def save(
        self, name: str, own: Mapping[str, bytes], shared: Mapping[str, Callable[[], bytes]], meta: Mapping[str, Any]
    ) -> Path:
        """Write a checkpoint; it appears under its name only when the files of all ranks are on the disk."""
        final, temporary = self.root / name, self.root / f".tmp-{name}"
        try:
            if all(self.ranks.together(lambda: final.exists() and self._refusal(final) is None)):
                return final  # the same position of the same run has the same contents
            self.ranks.first_does(lambda: self._begin(final, temporary))
            parts = self.ranks.together(lambda: self._write(temporary, own, shared))
            files = {key: digest for part in parts for key, digest in part.items()}
            self.ranks.first_does(lambda: self._publish(temporary, final, {"schema": SCHEMA, **meta, "files": files}))
            damage = [why for why in self.ranks.together(lambda: self._refusal(final, shared=False)) if why]
            self.ranks.first_does(lambda: self._settle(final, damage))
        except StorageFailed as error:  # it cannot be read back now: a failed save, which is tried again
            raise OSError(errno.EIO, str(error)) from None
        finally:
            if self.ranks.first:
                discard(temporary)
        return final

    def _begin(self, final: Path, temporary: Path) -> None:
        if final.exists():
            self._set_aside(final.name)
        own_folder(self.shared)
        discard(temporary)
        temporary.mkdir()

    def _write(
        self, temporary: Path, own: Mapping[str, bytes], shared: Mapping[str, Callable[[], bytes]]
    ) -> dict[str, dict[str, Any]]:
        """Write this rank's files; returns their entries for the manifest."""
        for key, make in shared.items():
            if key not in self._known:
                data = make()
                write_atomic(self.shared / key, data)
                self._known[key] = _digest(data)
        for key, data in own.items():
            write_durable(temporary / key, data)
        files = {key: _digest(data) for key, data in own.items()}
        return files | {f"shared/{key}": self._known[key] for key in shared}

    def _publish(self, temporary: Path, final: Path, manifest: Mapping[str, Any]) -> None:
        write_durable(temporary / "manifest.json", sealed(manifest))
        fsync_dir(temporary)
        os.replace(temporary, final)
        fsync_dir(self.root)

    def _settle(self, final: Path, damage: list[str]) -> None:
        """Remove older checkpoints once the new one has been verified."""
        if damage:
            self._set_aside(final.name)
            raise OSError(errno.EIO, f"{final.name} does not read back as it was written: {damage[0]}")
        self.prune()

    def _set_aside(self, name: str) -> None:
        discard(self.root / f"{SET_ASIDE}{name}")
        os.replace(self.root / name, self.root / f"{SET_ASIDE}{name}")

    def prune(self) -> None:
        """Keep the newest checkpoints, the last one at a phase's end, and their shared files."""
        try:
            found = {name: self._manifest(name) for name in self.names()}
        except (BadInput, StorageFailed):  # which files are needed cannot be told now
            return
        keep = set(list(found)[-self.kept :])
        phase_ends = [name for name, manifest in found.items() if manifest is not None and manifest.phase_end]
        keep |= set(phase_ends[-1:])
        for name in found:
            if name not in keep:
                discard(self.root / name)
        there = [found[name] for name in self.names() if name in found]
        named = {file for manifest in there if manifest is not None for file in manifest.files}
        if self.shared.exists():
            for path in self.shared.iterdir():
                if f"shared/{path.name}" not in named:
                    self._known.pop(path.name, None)
                    self._remove(path)
        if len(keep) >= self.kept:
            for path in self.root.glob(f"{SET_ASIDE}*"):
                discard(path)

    def _remove(self, path: Path) -> None:
        """Remove a file that nobody needs; what cannot be, such as a folder of network storage, is left."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            if path not in self._left:
                self._left.add(path)
                self.warn(f"{path} is not part of any checkpoint and cannot be removed ({error.strerror}); it is left.")

    # -- reading

    def names(self) -> list[str]:
        """All checkpoints, oldest first. Temporary and unrelated entries are left out."""
        if not self.root.is_dir():
            return []
        try:
            found = [p for p in self.root.iterdir() if NAME.fullmatch(p.name)]
        except OSError as error:
            raise BadInput(f"{self.root} cannot be read ({error.strerror}).") from None
        return sorted((p.name for p in found if p.is_dir() and not p.is_symlink()), key=position)

    def _manifest(self, name: str) -> Manifest | None:
        try:
            return _read_manifest(self.root / name)
        except Damaged:
            return None

    def load(self, path: Path, shared: bool = True, only: Collection[str] = ()) -> Checkpoint:
        """Read and verify one checkpoint, with or without its shared files, or `only` these files of it."""
        checkpoint = self._read(path, shared, only)
        for key in checkpoint.files:
            if key.startswith("shared/"):
                self._known[key.removeprefix("shared/")] = msgspec.structs.asdict(checkpoint.manifest.files[key])
        return checkpoint

    def _read(self, path: Path, shared: bool, only: Collection[str]) -> Checkpoint:
        """The files of a checkpoint: the sizes of all are checked first, then every hash."""
        manifest = _read_manifest(path)
        wanted = {
            key: entry
            for key, entry in manifest.files.items()
            if (key in only if only else shared or not key.startswith("shared/")) and not self._of_another(key)
        }
        if (total := sum(entry.size for entry in wanted.values())) > self.most:
            raise Damaged(f"its files have {total:,} bytes, more than a run with these settings can have")
        if (plain := wanted.get(STATE)) is not None and plain.size > MOST_STATE:
            raise Damaged(f"{STATE} has {plain.size:,} bytes, more than {MOST_STATE:,}")
        contents: dict[str, bytes] = {}
        for key, entry in wanted.items():
            where = (self.root if key.startswith("shared/") else path) / key
            data = _bytes(where, entry.size, key)
            if len(data) != entry.size:
                raise Damaged(f"{key} has {counted(len(data), 'byte')} instead of {entry.size:,}")
            if hashlib.sha256(data).hexdigest() != entry.sha256:
                raise Damaged(f"{key} does not have the hash that the manifest names")
            contents[key] = data
        return Checkpoint(path.name, manifest, contents)

    def _of_another(self, key: str) -> bool:
        """Whether a file belongs to another rank, which verifies it."""
        found = RANK.search(key)
        return found is not None and int(found[1]) != self.ranks.rank

    def newest_valid(self, accept: Callable[[Checkpoint], None], warn: Callable[[str], None]) -> None:
        """Give `accept` the newest checkpoint that is valid on every rank; those it refuses (Damaged) are skipped."""
        bad: list[str] = []
        for name in reversed(self.ranks.first_does(self.names)):
            reasons = [why for why in self.ranks.together(partial(self._refusal, self.root / name, accept)) if why]
            if reasons:
                bad.append(f"{name}: {reasons[0]}")
                self._known.clear()  # its shared files may have to be written again
                continue
            self.ranks.first_does(lambda: self._put_in_order(bad, warn))
            return
        raise NoValidCheckpoint(
            f"No valid checkpoint in {self.root} ({'; '.join(bad) or 'there is none'}). Nothing was changed; restore "
            f"the directory from a copy, or start a new run with another {option('out')}."
        )

    def _refusal(
        self, path: Path, accept: Callable[[Checkpoint], None] = lambda checkpoint: None, shared: bool = True
    ) -> str | None:
        """Why this rank refuses a checkpoint, or None: damaged files, or what `accept` says of them."""
        try:
            accept(self.load(path, shared))
        except Damaged as error:
            return str(error)
        return None

    def _put_in_order(self, bad: list[str], warn: Callable[[str], None]) -> None:
        for line in bad:
            try:
                self._set_aside(line.split(":")[0])
                warn(f"Damaged checkpoint set aside, {line}.")
            except OSError as error:  # the valid one is restored already
                warn(f"Damaged checkpoint, {line}; it cannot be set aside ({error.strerror}).")
        self._clean()

    def _clean(self) -> None:
        for path in [*self.root.glob(".tmp-*"), *self.shared.glob(".tmp-*")]:
            discard(path)


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as it is written: its last field is a hash of its bytes, in which zeros stand for that hash."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return seal(dump(rest | {"sha256": UNSEALED}, indent=1))


def seal(data: bytes) -> bytes:
    """The bytes of a manifest with their hash in place of the last zeros."""
    head, zeros, tail = data.rpartition(UNSEALED.encode())
    return head + hashlib.sha256(head + zeros + tail).hexdigest().encode() + tail


def _is_sealed(data: bytes, digest: Any) -> bool:
    if not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
        return False
    head, _, tail = data.rpartition(digest.encode())
    return hashlib.sha256(head + UNSEALED.encode() + tail).hexdigest() == digest


def _read_manifest(path: Path) -> Manifest:
    try:
        data = _bytes(path / "manifest.json", MAX_MANIFEST, "its manifest")
        plain = parse_json(data)
        schema = plain.get("schema") if isinstance(plain, dict) else None
        if schema not in READABLE:
            raise Damaged(f"it has schema {printable(schema)}; this program reads {READABLE}")
        if schema >= SEALED and not _is_sealed(data, plain.get("sha256")):
            raise Damaged("its manifest does not have the hash that it names")
        manifest = msgspec.convert(plain, Manifest)
    except Unreadable as error:
        raise Damaged(f"its manifest cannot be read ({error})") from None
    except msgspec.ValidationError as error:
        raise Damaged(f"its manifest has the wrong form ({error})") from None
    for key in manifest.files:
        if not FILE.fullmatch(key):
            raise Damaged(f"its manifest names {printable(key)!r}, which is not a checkpoint's file")
    return manifest


def _bytes(path: Path, most: int, what: str) -> bytes:
    """The bytes of a file. What may be readable a moment later is no damage: nothing is changed then.

    A disk that fails to read, or network storage that is away, may succeed when it is asked again.
    """
    try:
        for pause in EIO_PAUSES:
            try:
                return read_regular(path, most)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                time.sleep(pause)
        return read_regular(path, most)
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
        if error.errno in (AWAY | FORBIDDEN) - {errno.EIO}:  # a disk that still fails has damaged the file
            raise StorageFailed(f"{path} {why}; nothing was changed, so try again when it can be.") from None
        raise Damaged(f"{what} {why}") from None


def _digest(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
