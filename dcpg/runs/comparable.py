"""Which runs can be compared: their settings, and the names of variants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dcpg.config.presets import PRESETS
from dcpg.config.resolve import resolve
from dcpg.config.schema import Config, Levels
from dcpg.config.written import Written
from dcpg.core.encoders import Net
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.methods.drac import DrAC
from dcpg.settings import dotted
from dcpg.text import counted, printable

# What may differ between two runs that are compared: the method itself, and how a run is computed or watched.
_OF_THE_METHOD = (
    "algorithm.", "levels.sampler", "levels.beta", "levels.rho", "augment", "drac.", "network.encoder", "network.width",
    "network.skip",
)  # fmt: skip
_OF_THE_COMPUTER = (
    "seed", "game", "method", "preset", "steps", "shards", "keep_every", "analyse", "check_room", "wandb",
    "checkpoints.", "machine.", "env.timeout", "evaluation.every",
)  # fmt: skip
PRECISION, PAPERS_PRECISION = "machine.precision", "fp32"


@dataclass(frozen=True)
class Setting:
    """What the runs of one comparison have in common."""

    steps: int  # of whole rollouts
    preset: str = field(compare=False)  # its sizes count, not its name
    levels: tuple[tuple[str, Any], ...]  # the training levels
    rest: tuple[tuple[str, Any], ...]  # network, environments, evaluation

    @property
    def level_count(self) -> int:
        """The number of training levels; 0 stands for all of them."""
        plain = dict(self.levels)
        return len(set(plain["levels.seeds"])) or int(plain["levels.count"])

    def sentence(self) -> str:
        levels = counted(self.level_count, "training level") if self.level_count else "all training levels"
        return f"{counted(self.steps, 'step')}, preset {self.preset}, {levels}"


def setting_of(config: Config, preset_values: Mapping[str, Any]) -> Setting:
    """What a run can be compared with.

    The preset's values for methods belong to it, because `variant_of` does not name them. They are the run's own: the
    table of presets may have changed since it was made.
    """
    every = {name: value for name, value, _ in dotted(config)}
    common = {n: v for n, v in every.items() if not n.startswith((*_OF_THE_METHOD, *_OF_THE_COMPUTER))}
    levels = tuple((n, v) for n, v in common.items() if n.startswith("levels."))
    others = {n: v for n, v in common.items() if not n.startswith("levels.")}
    rest = tuple(sorted((others | _of_the_method(preset_values)).items()))  # whatever the order in the file
    return Setting(config.rollouts * config.rollout_size, config.preset, levels, rest)


def setting_today(config: Config) -> Setting:
    """The setting of a run that is started now."""
    return setting_of(config, PRESETS[config.preset])


@cache
def papers_setting() -> Setting:
    """The setting of the paper's own runs."""
    return setting_today(resolve("ppo", "bigfish"))


def variant_of(
    config: Config,
    preset_values: Mapping[str, Any],
    method_values: Mapping[str, Any] | None = None,
    usual_precision: str = "",
) -> str:
    """The method's name, and every setting that neither the method nor the run's preset explains.

    `method_values` are those of a method from a plugin if none is given, as the run recorded them.
    """
    usual = _usual_values(config, preset_values, method_values)
    of_method = {name: value for name, value, _ in dotted(config) if name.startswith(_OF_THE_METHOD)}
    ends = {name: name.rsplit(".", 1)[-1] for name in of_method}
    times = Counter(ends.values())  # a plugin's setting may end like a shared one
    shown = {name: end if times[end] == 1 else name for name, end in ends.items()}
    other = [f"{shown[name]}={value}" for name, value in of_method.items() if usual.get(name) != value]
    if usual_precision not in ("", config.machine.precision):
        other.append(f"precision={config.machine.precision}")
    return f"{config.method} [{', '.join(other)}]" if other else config.method


def _usual_values(
    config: Config, preset_values: Mapping[str, Any], method_values: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What the settings that make variants are if none is chosen.

    What a run recorded counts for methods from elsewhere alone: the package knows its own, and the file may be changed.
    """
    if method_values and not METHODS.is_own(config.method):
        return _shared_defaults() | dict(method_values)
    fixed = dict(METHODS[config.method].fixed)
    return _shared_defaults() | _defaults(config.method) | _of_the_method(preset_values) | fixed


def chosen_values(written: Written) -> dict[str, tuple[Any, Any]]:
    """Every setting that can change a result, by its dotted name: the run's value, and that of its method and preset.

    Steps are those of whole rollouts.
    """
    config, size = written.config, written.config.rollout_size
    usual = dict((*papers_setting().levels, *papers_setting().rest)) | {"steps": Config.steps}
    usual |= {n: tuple(v) if isinstance(v, list) else v for n, v in written.preset_values.items()}
    usual |= _usual_values(config, written.preset_values, written.method_values)
    usual["steps"] = usual["steps"] // size * size if isinstance(usual["steps"], int) else None
    found = {n: (v, usual.get(n)) for n, v, _ in dotted(config) if not n.startswith(_OF_THE_COMPUTER)}
    return found | {"steps": (config.rollouts * size, usual["steps"])}


@cache
def _defaults(method: str) -> dict[str, Any]:
    return {f"algorithm.{name}": value for name, value, _ in dotted(METHODS[method].settings())}


@cache
def _shared_defaults() -> dict[str, Any]:
    sections = {"levels": Levels(), "drac": DrAC(), "network": Net()}
    values = {f"{key}.{name}": value for key, section in sections.items() for name, value, _ in dotted(section)}
    return values | {"augment": Config.augment}


def _of_the_method(preset_values: Mapping[str, Any]) -> dict[str, Any]:
    return {n: _hashable(n, v) for n, v in preset_values.items() if n.startswith(_OF_THE_METHOD)}


def _hashable(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(name, item) for item in value)
    if isinstance(value, dict):
        raise BadInput(f"config.json: preset_values has {printable(repr(value), 40)} for {name}, which is no setting.")
    return value
