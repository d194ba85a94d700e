"""Every setting of a run: its type, default, origin and bounds."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dcpg.core.encoders import Net
from dcpg.envs.library import MODES
from dcpg.envs.procgen import ALL_LEVELS, MAX_STARTS, check_game
from dcpg.errors import BadInput
from dcpg.methods import METHODS, Common, Method
from dcpg.methods.drac import CHOICES, DrAC, with_drac
from dcpg.methods.plugins import find_encoder, find_method
from dcpg.settings import Section, dotted, setting
from dcpg.text import given

SCHEMA = 11  # version of config.json; a new one needs a function in migrate.py


OWN = "own:"  # prefix of the game's name in runs on the user's own environment


# settings that do not change the result at a given number of steps
UNDECISIVE = ("steps", "checkpoints", "keep_every", "check_room", "wandb", "preset")


SAMPLERS = ("uniform", "prioritised")


PRECISIONS = ("auto", "fp32", "bf16")
MOST_FRAMES = 65_536  # of a chunk
MOST_LISTED = 1_000_000  # levels by their seeds, so that config.json can be read again


ANALYSES = ("stiffness", "ood-actions", "values", "levels")


@dataclass(frozen=True)
class Env(Section):
    """The environments of training and evaluation."""

    mode: str = setting("easy", "paper, Section 5", choices=tuple(MODES))
    num_envs: int = setting(64, "paper, Table 4", low=1, high=65_536)
    frame_size: int = setting(64, "Procgen; smaller sizes average the frame", choices=(64, 32, 16))
    frame_stack: int = setting(1, "paper: one frame (k: the last k of the episode as one observation)", low=1, high=16)
    timeout: float = setting(300.0, "ours: seconds after which an environment counts as hung", above=0)


@dataclass(frozen=True)
class Levels(Section):
    """The training levels and how they are chosen."""

    start: int = setting(0, "paper, Section 5", low=0, high=ALL_LEVELS - 1)
    count: int = setting(200, "paper, Section 5 (0: all levels)", low=0, high=ALL_LEVELS)
    seeds: tuple[int, ...] = setting(
        (), "ours: an explicit list of level seeds instead of the range", low=0, high=ALL_LEVELS - 1
    )
    sampler: str = setting("uniform", "Procgen (prioritised: PLR's, for any method)", choices=SAMPLERS)
    beta: float = setting(0.1, "paper, Appendix D (PLR): temperature of the ranks", above=0)
    rho: float = setting(0.1, "paper, Appendix D (PLR): share of staleness", low=0, high=1)


@dataclass(frozen=True)
class Evaluation(Section):
    """How often a run is evaluated during training, and on how many episodes."""

    every: int = setting(10, "authors' code: rollouts between evaluations", low=1)
    episodes: int = setting(100, "paper, Section 5", low=1, high=4096)
    last_episodes: int = setting(
        0, "ours: episodes of the evaluation at the end of the run; 0: as many as before", low=0, high=4096
    )
    max_steps: int = setting(10_000, "ours: an episode longer than this counts as it stands", low=1)

    @property
    def most_episodes(self) -> int:
        return max(self.episodes, self.last_episodes)


@dataclass(frozen=True)
class Checkpoints(Section):
    """When the run is saved, in addition to the ends of phases and signals."""

    minutes: float = setting(10.0, "ours", above=0)


@dataclass(frozen=True)
class Machine(Section):
    """How it is computed. Fixed at the start and enforced on resume, because it affects the results' last bits."""

    device: str = setting("auto", "ours: auto, cpu, cuda or cuda:N; auto: cuda if torch has it")
    threads: int = setting(0, "ours: 0 means all cores at the start", low=0, high=1024)
    chunk: int = setting(
        0, "ours: frames that go through the encoder at once; 0: what suits the device", low=0, high=MOST_FRAMES
    )
    precision: str = setting(
        "auto", "ours: auto, fp32 or bf16; auto: bf16 with preset laptop where it is faster", choices=PRECISIONS
    )
    compile: bool = setting(False, "ours: torch.compile of the encoders")


@dataclass(frozen=True)
class Config(Section):
    """All settings of a run, checked against each other."""

    method: str = setting("dcpg", "given")
    game: str = setting("bigfish", "given")
    seed: int = setting(0, "given", low=0, high=2**63 - 1)
    steps: int = setting(25_000_000, "paper, Section 5", low=1, high=10**12)
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
        find_method(self.method)
        find_encoder(self.network.encoder)
        self.check_levels()
        self._check_method()
        self._check_division()

    def _check_method(self) -> None:
        """Refuse other values of the settings that define the method, and analyses that it does not support."""
        values = {name: value for name, value, _ in dotted(self)}
        for name, value in METHODS[self.method].fixed.items():
            if values[name] != value:
                raise BadInput(
                    f"{self.method} is defined by {name}={value}; got {values[name]!r}. Train another method, ppo "
                    f"for example, with {given(name, values[name])}."
                )

        if "ood-actions" in self.analyse and "discriminator" not in _heads(self.declared()):
            raise BadInput(
                f"analyse=ood-actions needs a discriminator, which {self.method} does not have; train ddcpg, dcpg+f, "
                "dcpg+i, dcpg+fi or dppg."
            )

    def check_levels(self) -> None:
        """Refuse games and levels that there are not; no method is asked."""
        if not self.game.startswith(OWN):
            check_game(self.game)
        c = self.levels
        if len(c.seeds) > MOST_LISTED:
            raise BadInput(f"levels.seeds lists {len(c.seeds):,} levels; it takes at most {MOST_LISTED:,}.")
        if c.start + c.count > ALL_LEVELS:
            raise BadInput(f"levels.start + levels.count must be at most {ALL_LEVELS}.")
        if c.sampler == "uniform":
            return
        if self.game.startswith(OWN):
            raise BadInput(
                f"levels.sampler={c.sampler} sets levels, which only Procgen allows; an environment of your own "
                "needs levels.sampler=uniform."
            )
        if not (c.seeds or c.count):
            raise BadInput(f"levels.sampler={c.sampler} needs a finite set of levels; levels.count is 0, all levels.")
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
        for length in sorted(self.declared().lengths(self.rollouts)):
            if length * self.env.num_envs % segments:
                raise BadInput(
                    f"algorithm.segments={segments} does not divide the {length * self.env.num_envs} segments of B "
                    "(N_pi x env.num_envs); choose a divisor."
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
        """Environment steps of one rollout."""
        return self.env.num_envs * self.rollout_length

    @property
    def rollouts(self) -> int:
        """Whole rollouts of the run; a remainder of `steps` is dropped."""
        return self.steps // self.rollout_size

    def episodes_after(self, steps: int) -> int:
        """Episodes of the evaluation after this number of steps."""
        ended = steps >= self.rollouts * self.rollout_size
        return (ended and self.evaluation.last_episodes) or self.evaluation.episodes

    def declared(self) -> Method:
        """The method, filled in with this run's settings: pure data, cached."""
        return _declared(METHODS[self.method].declare, self.algorithm, self.drac, self.augment)

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON data, nested like their dotted names."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain


@functools.cache
def _declared(declare: Callable[[Any], Method], algorithm: Common, drac: DrAC, augment: str) -> Method:
    method = declare(algorithm)
    if not isinstance(method, Method):
        raise BadInput(f"{declare.__name__} must return a dcpg.methods.Method; it returned {type(method).__name__}.")
    return method if augment == "none" else with_drac(method, drac, augment)


def _heads(method: Method) -> set[str]:
    return {head for heads in method.networks.values() for head in heads}
