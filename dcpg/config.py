"""The whole configuration of a run: resolved at the start, written down, enforced on resume."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dcpg.envs.procgen import ALL_LEVELS, MAX_STARTS, MODES, check_game
from dcpg.errors import BadInput, unknown
from dcpg.methods import METHODS, Common, Method
from dcpg.methods.drac import CHOICES, DrAC, with_drac
from dcpg.processes import processes, processes_here
from dcpg.settings import Section, dotted, override, setting

SCHEMA = 5
OWN = "own:"  # a run on the user's own environment has this before its game's name


# what changes nothing in the result at a given number of steps
UNDECISIVE = ("steps", "checkpoints", "keep_every", "check_room", "wandb", "preset")
SAMPLERS = ("uniform", "prioritised")
ANALYSES = ("stiffness", "ood-actions", "values", "levels")


@dataclass(frozen=True)
class Env(Section):
    """The environments."""

    mode: str = setting("easy", "paper, Section 5", choices=tuple(MODES))
    num_envs: int = setting(64, "paper, Table 4", low=1, high=65_536)
    frame_size: int = setting(64, "Procgen; smaller sizes average the frame", choices=(64, 32, 16))
    timeout: float = setting(300.0, "ours: seconds after which an environment counts as hung", above=0)


@dataclass(frozen=True)
class Levels(Section):
    """The training levels."""

    start: int = setting(0, "paper, Section 5", low=0, high=ALL_LEVELS - 1)
    count: int = setting(200, "paper, Section 5 (0: all levels)", low=0, high=ALL_LEVELS)
    seeds: tuple[int, ...] = setting(
        (), "ours: an explicit list of level seeds instead of the range", low=0, high=ALL_LEVELS - 1
    )
    sampler: str = setting("uniform", "Procgen (prioritised: PLR's, for any method)", choices=SAMPLERS)
    beta: float = setting(0.1, "paper, Appendix D (PLR): temperature of the ranks", above=0)
    rho: float = setting(0.1, "paper, Appendix D (PLR): share of staleness", low=0, high=1)


@dataclass(frozen=True)
class Net(Section):
    """The networks' widths."""

    channels: tuple[int, ...] = setting((16, 32, 32), "authors' code (IMPALA)", low=1)
    features: int = setting(256, "authors' code (IMPALA)", low=1)
    discriminator: int = setting(256, "paper, Appendix D (hidden sizes [256, 256])", low=1)


@dataclass(frozen=True)
class Evaluation(Section):
    """Evaluation during training."""

    every: int = setting(10, "authors' code: rollouts between evaluations", low=1)
    episodes: int = setting(100, "paper, Section 5", low=1, high=65_536)
    max_steps: int = setting(10_000, "ours: an episode longer than this counts as it stands", low=1)


@dataclass(frozen=True)
class Checkpoints(Section):
    """When the run is saved, besides phase ends and signals."""

    minutes: float = setting(10.0, "ours", above=0)


@dataclass(frozen=True)
class Machine(Section):
    """How it is computed. Fixed at the start and enforced on resume, because results depend on it to the last bit."""

    device: str = setting("cpu", "ours: cpu, cuda or cuda:N")
    threads: int = setting(0, "ours: 0 means all cores at the start", low=0, high=1024)
    chunk: int = setting(120, "ours: frames that go through the encoder at once", low=1, high=65_536)
    precision: str = setting("fp32", "ours", choices=("fp32", "bf16"))
    compile: bool = setting(False, "ours: torch.compile of the encoders")


@dataclass(frozen=True)
class Config(Section):
    """A run."""

    method: str = setting("dcpg", "given")
    game: str = setting("bigfish", "given")
    seed: int = setting(0, "given", low=0)
    steps: int = setting(25_000_000, "paper, Section 5", low=1)
    preset: str = setting("paper", "given")
    rollout_length: int = setting(256, "paper, Table 4", low=2, high=1_000_000)
    shards: int = setting(
        1, "ours: groups of environments that every minibatch takes equally from; torchrun: the processes",
        choices=(1, 2, 4),
    )  # fmt: skip
    augment: str = setting("none", "ours: DrAC for any method, ucb or one augmentation", choices=CHOICES)
    keep_every: int = setting(0, "ours: steps between milestones (weights only; 0: none)", low=0)
    analyse: tuple[str, ...] = setting(
        (), "ours: stiffness, ood-actions, measured on each rollout (values, levels: in eval.jsonl anyway)",
        choices=ANALYSES,
    )  # fmt: skip
    analyse_every: int = setting(1, "paper, Appendix A: rollouts between two measurements", low=1)
    check_room: bool = setting(True, "ours: refuse to start without the memory and disk that may be needed")
    wandb: bool = setting(False, "ours: also log to Weights & Biases (needs the extra `wandb`)")
    algorithm: Common = dataclasses.field(default_factory=Common)
    env: Env = dataclasses.field(default_factory=Env)
    levels: Levels = dataclasses.field(default_factory=Levels)
    drac: DrAC = dataclasses.field(default_factory=DrAC)
    network: Net = dataclasses.field(default_factory=Net)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    checkpoints: Checkpoints = dataclasses.field(default_factory=Checkpoints)
    machine: Machine = dataclasses.field(default_factory=Machine)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if not self.game.startswith(OWN):
            check_game(self.game)
        self._check_method()
        self._check_levels()
        self._check_division()

    def _check_method(self) -> None:
        """What a method is made of cannot be set otherwise under its name."""
        values = {name: value for name, value, _ in dotted(self)}
        for name, value in METHODS[self.method].fixed.items():
            if values[name] != value:
                raise BadInput(
                    f"{self.method} is what it is by {name}={value}; got {values[name]!r}. Train another method, ppo "
                    f"for example, with --set {name}={values[name]}."
                )

        if "ood-actions" in self.analyse and "discriminator" not in _heads(self.declared()):
            raise BadInput(
                f"analyse=ood-actions asks a discriminator, which {self.method} does not have; train ddcpg, dcpg+f, "
                "dcpg+i, dcpg+fi or dppg."
            )

    def _check_levels(self) -> None:
        c = self.levels
        if c.start + c.count > ALL_LEVELS:
            raise BadInput(f"levels.start + levels.count must be at most {ALL_LEVELS}.")
        if c.sampler == "uniform":
            return
        if self.game.startswith(OWN):
            raise BadInput(
                f"levels.sampler={c.sampler} sets levels, which only Procgen lets us do; an environment of your own "
                "needs levels.sampler=uniform."
            )
        if not (c.seeds or c.count):
            raise BadInput(f"levels.sampler={c.sampler} needs a finite set of levels; levels.count is 0, all of them.")
        if (len(c.seeds) or c.count) > MAX_STARTS:
            raise BadInput(
                f"levels.sampler={c.sampler} keeps the start of every level in memory, so it takes at most "
                f"{MAX_STARTS} levels; got {len(c.seeds) or c.count}."
            )
        if len(set(c.seeds)) != len(c.seeds):
            raise BadInput(f"levels.sampler={c.sampler} needs different levels; levels.seeds names one twice.")

    def _check_division(self) -> None:
        size, h = self.rollout_size, self.algorithm
        if size % h.minibatches:
            raise BadInput(
                f"algorithm.minibatches={h.minibatches} does not divide a rollout of {self.env.num_envs} x "
                f"{self.rollout_length} = {size} transitions; choose a divisor."
            )
        segments = getattr(h, "segments", 1)
        total = getattr(h, "N_pi", 1) * self.env.num_envs
        if total % segments:
            raise BadInput(
                f"algorithm.segments={segments} does not divide the {total} segments of B (N_pi x env.num_envs); "
                "choose a divisor."
            )
        for name, number in (
            ("env.num_envs", self.env.num_envs),
            ("algorithm.segments", getattr(h, "segments", self.shards)),
            ("a minibatch's transitions, rollout_length x env.num_envs / algorithm.minibatches", size // h.minibatches),
        ):
            if number % self.shards:
                raise BadInput(f"shards={self.shards} does not divide {name}={number}; choose 1, 2 or 4 that does.")
        if self.machine.threads < 1:
            raise BadInput("machine.threads must be at least 1.")
        if self.steps < size:
            raise BadInput(f"steps={self.steps} is less than one rollout of {size} steps; ask for at least {size}.")

    @property
    def rollout_size(self) -> int:
        """Steps of one rollout."""
        return self.env.num_envs * self.rollout_length

    @property
    def rollouts(self) -> int:
        """Whole rollouts of the run; the rest of the steps is dropped."""
        return self.steps // self.rollout_size

    def declared(self) -> Method:
        """The method, filled in with this run's settings."""
        method = METHODS[self.method].declare(self.algorithm)
        return method if self.augment == "none" else with_drac(method, self.drac, self.augment)

    def to_json(self) -> dict[str, Any]:
        """Plain data, nested as the dotted names are."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    def fingerprint(self) -> str:
        """A hash of all that decides the result at a given number of steps."""
        plain = self.to_json()
        for name in UNDECISIVE:
            plain.pop(name)
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _heads(method: Method) -> set[str]:
    return {head for heads in method.networks.values() for head in heads}


# Presets change the paper's values by dotted name; a name that a method does not have is passed over.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "laptop": {
        "steps": 800_000,
        "rollout_length": 32,
        "algorithm.N_pi": 4,
        "algorithm.E_aux": 2,
        "algorithm.segments": 8,
        "env.frame_size": 32,
        "network.channels": (8, 16, 16),
        "evaluation.every": 40,
        "machine.chunk": 256,
    },
    "tiny": {
        "steps": 2_048,
        "rollout_length": 16,
        "algorithm.N_pi": 2,
        "env.num_envs": 8,
        "env.frame_size": 32,
        "network.channels": (4, 8, 8),
        "network.features": 32,
        "evaluation.episodes": 8,
        "evaluation.every": 16,
        "machine.threads": 1,
    },
}


def resolve(
    method: str,
    game: str,
    *,
    preset: str = "paper",
    steps: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Config:
    """Defaults, then the preset, then what was given."""
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    values = dict(PRESETS[preset])
    base = _Loose(algorithm=METHODS[method].settings())
    known = {name for name, _, _ in dotted(base)}
    values = {name: value for name, value in values.items() if name in known} | dict(METHODS[method].fixed)
    for name in ("method", "game", "seed", "preset"):
        if settings and name in settings:
            raise BadInput(f"{name} cannot be set with --set; it has an argument or option of its own.")
    values |= dict(settings or {})
    _check_effect(settings or {}, values)
    if steps is not None:
        values["steps"] = steps
    loose = override(base, values)
    if loose.machine.threads == 0:
        loose = override(loose, {"machine.threads": max(available_cores() // processes_here(), 1)})
    if processes() > 1 and "shards" not in (settings or {}):
        loose = override(loose, {"shards": processes()})
    plain = {f.name: getattr(loose, f.name) for f in dataclasses.fields(loose)}
    return Config(**plain | {"method": method, "game": game, "seed": seed, "preset": preset})


# settings that do something only while another one has one of these values
NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "drac.alpha_r": ("augment", CHOICES[1:]),
    "drac.c": ("augment", ("ucb",)),
    "drac.window": ("augment", ("ucb",)),
    "levels.beta": ("levels.sampler", ("prioritised",)),
    "levels.rho": ("levels.sampler", ("prioritised",)),
}


def _check_effect(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuse a setting that would change nothing: who gives it expects something of it."""
    defaults = {name: value for name, value, _ in dotted(_Loose())}
    for name in given.keys() & NEEDS.keys():
        other, useful = NEEDS[name]
        value = values.get(other, defaults[other])
        if value not in useful:
            raise BadInput(f"{name} has no effect while {other}={value}; add --set {other}={useful[0]}.")


@dataclass(frozen=True)
class _Loose(Config):
    """A configuration in the making: checked as a whole only when it becomes a Config."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)


def origins(config: Config, settings: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Every dotted name, its value, and where that value comes from."""
    preset = PRESETS.get(config.preset, {})
    rows = []
    for name, value, origin in dotted(config):
        if name in METHODS[config.method].fixed:
            origin = f"method {config.method}"
        elif name in settings:
            origin = "given"
        elif name in preset:
            origin = f"preset {config.preset}"
        rows.append((name, value, origin))
    return rows


def from_json(plain: Mapping[str, Any], where: Path | str = "config.json") -> Config:
    """A configuration as it was written down; anything unknown or missing is refused."""
    if plain.get("schema", SCHEMA) != SCHEMA:
        raise BadInput(f"{where} has schema {plain['schema']!r}; this program reads schema {SCHEMA}.")
    try:
        name = plain["method"]
        if name not in METHODS:
            raise unknown("method", str(name), METHODS)
        sections: dict[str, Section] = {
            "algorithm": METHODS[name].settings(), "env": Env(), "levels": Levels(), "drac": DrAC(), "network": Net(),
            "evaluation": Evaluation(), "checkpoints": Checkpoints(), "machine": Machine(),
        }  # fmt: skip
        values = {k: v for k, v in plain.items() if k not in ("schema", "init", "versions", "export")}
        _complete(values, Config)
        for key, section in sections.items():
            _complete(values[key], type(section), f"{key}.")
            values[key] = section.with_values(values[key])
        return Config(**values)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{where} is not a run's configuration ({type(error).__name__}: {error}).") from None


def _complete(values: Mapping[str, Any], section: type[Section], prefix: str = "") -> None:
    known, given = {f.name for f in dataclasses.fields(section)}, set(values)
    for name in sorted(given - known):
        raise unknown("setting", f"{prefix}{name}", [f"{prefix}{k}" for k in known])
    for name in sorted(known - given):
        raise BadInput(f"{prefix}{name} is missing.")


def device_of(config: Config) -> torch.device:
    """The device that a run asks for, if this machine has it."""
    name = config.machine.device
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"machine.device must be cpu, cuda or cuda:N; got {name!r}.") from None
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"machine.device must be cpu, cuda or cuda:N; got {name!r}.")
    if device.type == "cuda" and processes_here() > 1:
        if device.index is not None:
            raise BadInput(f"machine.device is {name!r}, but torchrun gives each process its own; use cuda.")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"machine.device is {name!r}, but torch sees {torch.cuda.device_count()} cuda devices; use cpu.")
    return device


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
