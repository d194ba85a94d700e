"""Whose a checkpoint is: a run takes only what was made with its own configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpg.config.schema import Config
from dcpg.config.written import Written, changed_settings, digest
from dcpg.config.written import fingerprint as fingerprint_of
from dcpg.errors import NoValidCheckpoint
from dcpg.storage.checkpoint import Damaged, Manifest
from dcpg.text import printable

CONFIGURATION = "configuration"  # where a summary and an analysis have the hash
ORIGIN = "origin"  # where a summary has that of what the run began with


class Foreign(Damaged):
    """Raised for a checkpoint of another run, or of this one before its config.json was changed by hand."""

    def __init__(self, message: str, changed: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.changed = tuple(changed)  # a clause for each setting that differs


@dataclass(frozen=True)
class Owner:
    """The run that a folder holds, by its configuration and the hash that its checkpoints record."""

    config: Config
    fingerprint: str  # of config.json as it was written

    @classmethod
    def of(cls, written: Written) -> Owner:
        return cls(written.config, written.fingerprint)

    def check(self, manifest: Manifest) -> None:
        """Raise Damaged if a checkpoint is not this run's, or does not tell."""
        if manifest.settings is not None and manifest.settings_sha256 != digest(manifest.settings):
            raise Damaged("what its manifest says of the settings is damaged")
        if manifest.method != self.config.method or not self.made(manifest.config):
            raise Foreign(
                f"it belongs to another method or configuration ({printable(manifest.method)})",
                changed_settings(manifest.settings, self.config),
            )

    def made(self, config: object) -> bool:
        """Whether this is the hash of the run's configuration."""
        # as config.json has it, or with its numbers as the settings' types write them
        return config in (self.fingerprint, fingerprint_of(self.config.to_json()))


def is_of(written: Written, found: Mapping[str, Any]) -> bool:
    """Whether a summary or an analysis is of a run; those of older releases have no hashes."""
    config = written.config
    if [found.get(name) for name in ("method", "game", "seed")] != [config.method, config.game, config.seed]:
        return False
    if found.get(ORIGIN, written.origin) != written.origin:
        return False
    return CONFIGURATION not in found or Owner.of(written).made(found[CONFIGURATION])


def not_as_made(config: Path, changed: Sequence[str]) -> NoValidCheckpoint:
    """The error for a run of which no checkpoint fits its config.json."""
    return NoValidCheckpoint(
        f"{config} is not what the checkpoints were made with: {'; '.join(dict.fromkeys(changed))}. Change it back to "
        "go on, or start a new run with the new values."
    )
