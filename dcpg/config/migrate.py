"""Migrates configurations of older releases to the current schema, with one small function per schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dcpg.config.schema import SCHEMA
from dcpg.envs.library import known_pictures
from dcpg.errors import BadInput
from dcpg.text import printable

# The presets of schema 5. A run's label and setting follow from the presets with which it was started.
PRESETS_5: dict[str, dict[str, Any]] = {
    "paper": {},
    "laptop": {
        "steps": 800_000,
        "rollout_length": 32,
        "algorithm.N_pi": 4,
        "algorithm.E_aux": 2,
        "algorithm.segments": 8,
        "env.frame_size": 32,
        "network.channels": [8, 16, 16],
        "evaluation.every": 40,
        "machine.chunk": 256,
    },
    "tiny": {
        "steps": 2_048,
        "rollout_length": 16,
        "algorithm.N_pi": 2,
        "env.num_envs": 8,
        "env.frame_size": 32,
        "network.channels": [4, 8, 8],
        "network.features": 32,
        "evaluation.episodes": 8,
        "evaluation.every": 16,
        "machine.threads": 1,
    },
}


def _from_5(plain: dict[str, Any]) -> dict[str, Any]:
    """Schema 6 also records the values that the preset set."""
    return plain | {"preset_values": PRESETS_5.get(str(plain.get("preset")), {})}


def _from_6(plain: dict[str, Any]) -> dict[str, Any]:
    """Schema 7 has a choice of encoders. Device, precision and chunk were never automatic."""
    return plain | {"network": {"encoder": "impala", "width": 1} | plain["network"]}


def _from_7(plain: dict[str, Any]) -> dict[str, Any]:
    """Schema 8 names the library that drew the frames. Before, it was always procgen-mirror 0.10.7."""
    name, env = "procgen-mirror 0.10.7", plain.get("env")
    mode = env.get("mode") if isinstance(env, dict) else None
    pictures = known_pictures()[name].get(f"{plain.get('game')} {mode}")  # None: your own environment
    return {"procgen": {"library": name, "interface": 1, "pictures": pictures} if pictures else None} | plain


def _from_8(plain: dict[str, Any]) -> dict[str, Any]:
    """Schema 9 can stack frames and change N_pi, and names plugins and the user's own environment."""
    algorithm = plain["algorithm"]
    if "N_pi" in algorithm:
        algorithm = {"N_pi_first": []} | algorithm
    return plain | {"env": {"frame_stack": 1} | plain["env"], "algorithm": algorithm}


def _from_9(plain: dict[str, Any]) -> dict[str, Any]:
    """Schema 10 has options for what the paper and published code do differently; none of them was in use."""
    algorithm, values = plain["algorithm"], plain.get("method_values")
    added: dict[str, Any] = {"negatives": "minibatch"} if "mask_boundaries" in algorithm else {}
    of: dict[str, dict[str, Any]] = {"separate-dcpg": {"two_steps": False}, "ppg+dr": {"advantage_gamma": None}}
    added |= of.get(plain["method"], {})
    found = plain | {"network": {"skip": "plain"} | plain["network"], "algorithm": added | algorithm}
    if isinstance(values, dict) and values:  # of a method from a plugin
        found["method_values"] = {f"algorithm.{name}": value for name, value in added.items()} | values
    return found


def _from_10(plain: dict[str, Any]) -> dict[str, Any]:
    """Schema 11 can have more episodes in the last evaluation."""
    return plain | {"evaluation": {"last_episodes": 0} | plain["evaluation"]}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    5: _from_5, 6: _from_6, 7: _from_7, 8: _from_8, 9: _from_9, 10: _from_10,
}  # fmt: skip


def migrated(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in the current schema; one that is too old, or newer than this program, is refused."""
    found, schema = dict(plain), plain.get("schema", SCHEMA)
    if schema not in (*MIGRATIONS, SCHEMA):
        readable = ", ".join(map(str, [*MIGRATIONS, SCHEMA]))
        raise BadInput(
            f"it has schema {printable(repr(schema))}; this program reads schemas {readable}. {_advice(plain, schema)}"
        )
    while schema != SCHEMA:
        found = MIGRATIONS[schema](found) | {"schema": schema + 1}
        schema += 1
    return found


def _advice(plain: Mapping[str, Any], schema: Any) -> str:
    """What to do with a configuration that cannot be read."""
    if not isinstance(schema, int):
        return "The file is damaged; restore it from a copy."
    versions = plain.get("versions")
    release = printable(versions["dcpg"]) if isinstance(versions, dict) and versions.get("dcpg") else None
    if schema > SCHEMA:
        newer = f" to {release} or later" if release else ""
        return f"A newer release wrote it; upgrade dcpg{newer}: pip install --upgrade dcpg"
    wrote = f"dcpg {release}, which" if release else "the release of dcpg that"
    return f"Read it with {wrote} wrote it, or train the run again."
