"""A run's agent as a folder to publish: weights, configuration, model card and a video, laid out for Hugging Face."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load as load_tensors

from dcpg.config.command import train_command
from dcpg.config.presets import PRESETS
from dcpg.config.schema import OWN, Config
from dcpg.config.written import EXPORT, from_json
from dcpg.envs.procgen import ALL_LEVELS
from dcpg.errors import BadInput, NoValidCheckpoint, StorageFailed
from dcpg.methods import METHODS
from dcpg.runs import video
from dcpg.runs.agent import Agent, load
from dcpg.runs.evaluate import evaluate_agent, recorded_levels
from dcpg.storage.files import dump, fsync_dir, write_durable
from dcpg.storage.rows import read_rows
from dcpg.storage.rundir import RunDirectory
from dcpg.training.weights import WEIGHTS, Moment, find

CONFIG, CARD, REPLAY = "config.json", "README.md", "replay.mp4"


FILES = {WEIGHTS, CONFIG, CARD, REPLAY}


SPLITS = {"test": "unseen levels", "train": "training levels"}


CITATION = """@inproceedings{moon2022rethinking,
  title     = {Rethinking Value Function Learning for Generalization in Reinforcement Learning},
  author    = {Moon, Seungyong and Lee, JunYeong and Song, Hyun Oh},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2022}
}"""


@dataclass(frozen=True)
class Score:
    """The mean return of some episodes, and the half width of its 95% interval."""

    mean: float
    spread: float
    episodes: int

    @classmethod
    def of(cls, returns: Sequence[float]) -> Score:
        """Of raw returns."""
        n = len(returns)
        return cls(statistics.fmean(returns), 1.96 * statistics.stdev(returns) / n**0.5 if n > 1 else 0.0, n)


def write(
    directory: Path, out: Path | None = None, at: int | None = None, say: Callable[[str], None] = lambda text: None
) -> Path:
    """Export a run's newest weights, or those at so many steps; the folder is there when it is whole."""
    run = RunDirectory(directory)
    plain = run.read_config()
    config = from_json(plain, run.config)
    if EXPORT in plain:
        raise BadInput(f"{directory} is an export already; export the run that it was made from.")
    if at == 0:
        raise BadInput("The untrained agent is not exported: its weights follow from the seed alone.")
    target = Path(os.path.abspath(out if out is not None else directory / "export"))
    check_target(target)
    agent = None if config.game.startswith(OWN) else load(directory, at)
    moment = agent.moment if agent is not None else find(run, config, at)
    files = {
        WEIGHTS: _checked(moment, directory),
        CONFIG: dump({**plain, "init": None, EXPORT: _about(moment)}, indent=2),
        CARD: card(config, plain, moment, scores(run, moment, agent, say)).encode(),
    }
    temporary = target.with_name(f".tmp-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name, data in files.items():
            write_durable(temporary / name, data)
        if agent is not None:
            say("Recording the agent on unseen levels ...")
            video.record(agent, recorded_levels(agent, "test"), temporary / REPLAY)
        fsync_dir(temporary)
        _put(temporary, target)
    except OSError as error:
        raise StorageFailed(f"{target} cannot be written ({error.strerror or error}).") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def check_target(target: Path) -> None:
    """Refuse a place that holds anything but an earlier export: it would be lost."""
    advice = "choose another --out."
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise BadInput(f"{target} is not a folder; {advice}")
    found = {p.name for p in target.iterdir()} if target.exists() else set()
    if not found:
        return
    for name in sorted(found - FILES):
        raise BadInput(f"{target} holds {name}, which is no part of an export; {advice}")
    try:
        is_export = EXPORT in json.loads((target / CONFIG).read_bytes())
    except (OSError, ValueError, TypeError):
        is_export = False
    if not is_export:
        raise BadInput(f"{target} is there already and is not an export; {advice}")


def _put(temporary: Path, target: Path) -> None:
    """Under its name, instead of an earlier export."""
    before = target.with_name(f".old-{target.name}")
    shutil.rmtree(before, ignore_errors=True)
    if target.exists():
        os.replace(target, before)
    try:
        os.replace(temporary, target)
    except OSError:
        if before.exists():
            os.replace(before, target)
        raise
    fsync_dir(target.parent)
    shutil.rmtree(before, ignore_errors=True)


def _checked(moment: Moment, directory: Path) -> bytes:
    """The weights; where there is no environment to build a network for, they must at least be tensors."""
    assert moment.weights is not None
    try:
        load_tensors(moment.weights)
    except safetensors.SafetensorError as error:
        raise NoValidCheckpoint(f"{directory}: the weights are not a safetensors file ({error}).") from None
    return moment.weights


def _about(moment: Moment) -> dict[str, Any]:
    assert moment.weights is not None
    return {
        "steps": moment.steps,
        "evaluation": moment.k,
        # the running sums belong to the training environments, not to the agent
        "normaliser": {**moment.normaliser.state(), "sums": []},
        "sha256": hashlib.sha256(moment.weights).hexdigest(),
    }


def scores(run: RunDirectory, moment: Moment, agent: Agent | None, say: Callable[[str], None]) -> dict[str, Score]:
    """The evaluation that belongs to the weights: as the run noted it, or else played now."""
    for row in read_rows(run.evaluations.path) if moment.between else []:
        if (row.get("k"), row.get("steps")) == (moment.k, moment.steps):
            return {split: Score.of(row[f"{split}_returns"]) for split in SPLITS if f"{split}_returns" in row}
    if agent is None:
        return {}
    say("These weights were not evaluated while they were trained; evaluating them ...")
    return {split: Score.of(evaluate_agent(agent, split)["returns"]) for split in SPLITS}


def command(config: Config) -> str:
    """`dcpg train ...` that resolves to the same configuration on every machine."""
    words = train_command(config)
    # the number of threads is taken from the machine unless it is given, and results depend on it to the last bit
    if "machine.threads=" not in words and "machine.threads" not in PRESETS[config.preset]:
        words += f" --set machine.threads={config.machine.threads}"
    return words


def card(config: Config, plain: Mapping[str, Any], moment: Moment, found: Mapping[str, Score]) -> str:
    """The model card."""
    game = config.game.removeprefix(OWN)
    parts = [
        _front_matter(config, game, found),
        f"# {config.method} on {game}",
        "An agent that was trained with the Python package `dcpg`, on some levels, to play levels it has never seen.",
        _table(config, game, moment),
        "## Returns",
        _returns(config, found),
        "## Use",
        _use(config),
        "## Making it again",
        _again(config, plain, moment),
        "Computed with " + ", ".join(f"{name} {v}" for name, v in dict(plain.get("versions") or {}).items()) + ".",
        "## Citation",
        f"```bibtex\n{CITATION}\n```",
        "## Licence",
        "MIT, as dcpg itself.",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(config: Config, game: str, found: Mapping[str, Score]) -> str:
    """YAML; every text is quoted as JSON, which YAML reads too."""
    family = "own" if config.game.startswith(OWN) else "procgen"
    lines = ["---", "library_name: dcpg", "pipeline_tag: reinforcement-learning", "license: mit", "tags:"]
    lines += [f"- {json.dumps(tag)}" for tag in ("reinforcement-learning", "dcpg", family, f"{family}-{game}")]
    lines += ["model-index:", f"- name: {json.dumps(f'{config.method}-{game}-{config.seed}')}", "  results:"]
    for split, score in found.items():
        lines += [
            "  - task: {type: reinforcement-learning, name: reinforcement-learning}",
            f"    dataset: {{name: {json.dumps(f'{game}, {SPLITS[split]}')}, type: {json.dumps(f'{family}-{game}')}}}",
            "    metrics:",
            f"    - {{type: mean_reward, value: {score.mean!r}, name: {json.dumps(f'mean return, {SPLITS[split]}')}}}",
        ]
    if not found:
        lines[-1] += " []"
    return "\n".join([*lines, "---"])


def _table(config: Config, game: str, moment: Moment) -> str:
    own = config.game.startswith(OWN)
    rows = {
        "method": f"`{config.method}`: {METHODS[config.method].summary}",
        "game": f"{game}, an environment of its maker's own" if own else f"{game} (Procgen, {config.env.mode})",
        "seed": str(config.seed),
        "steps": f"{moment.steps:,}",
        "preset": f"`{config.preset}`",
        "training levels": "the environment's own" if own else training_levels(config),
        "unseen levels": "the environment's own" if own else f"drawn from all {ALL_LEVELS:,} level seeds of the game",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])


def training_levels(config: Config) -> str:
    """Which levels a run is trained on."""
    c = config.levels
    if c.seeds:
        words = f"the {len(c.seeds)} level seeds that `levels.seeds` of `{CONFIG}` lists"
    else:
        words = f"level seeds {c.start} to {c.start + c.count - 1}" if c.count else "all level seeds of the game"
    return words + (", by prioritised replay" if c.sampler == "prioritised" else "")


def _returns(config: Config, found: Mapping[str, Score]) -> str:
    if not found:
        return "These weights were not evaluated while they were trained."
    lines = ["| levels | mean return ± 95% | episodes |", "|---|---|---|"]
    lines += [f"| {SPLITS[split]} | {s.mean:.2f} ± {s.spread:.2f} | {s.episodes} |" for split, s in found.items()]
    text = "\n".join(lines) + "\n\nThe first episode of each of so many new environments, with sampled actions."
    if config.game.startswith(OWN):
        return text + " There is no video, since only Procgen's games can be shown."
    return text + f" [{REPLAY}]({REPLAY}) shows four episodes on unseen levels."


def _use(config: Config) -> str:
    env = ", env=make" if config.game.startswith(OWN) else ""
    lines = [
        "import numpy as np",
        "import dcpg",
        "",
        f'agent = dcpg.load("folder"{env})  # the folder with these files',
    ]
    if env:
        lines += ["# make(num_envs, seed) -> gymnasium.vector.VectorEnv: the environment that it was trained on"]
    lines += [
        "frames = np.zeros((4, *agent.shape), agent.env.dtype)  # one observation or a batch",
        "print(agent.act(frames), agent.act(frames[0], greedy=True))",
    ]
    text = "\n".join(["```python", *lines, "```"])
    text += "\n\nThe weights are a safetensors file: loading runs no code that the folder brings."
    return text if env else text + " `dcpg eval folder` plays the agent and gives the returns above again."


def _again(config: Config, plain: Mapping[str, Any], moment: Moment) -> str:
    if config.game.startswith(OWN):
        text = (
            "There is no command for an environment of one's own; it is trained from Python, with `dcpg.train("
            f'"{config.method}", env=..., preset="{config.preset}", seed={config.seed}, steps={config.steps}, '
            f"settings=...)` and the settings of `{CONFIG}`."
        )
    else:
        text = f"```sh\n{command(config)}\n```\n\n"
        text += "On the same machine, with the versions below, this gives the same weights."
    if moment.steps < config.rollouts * config.rollout_size:
        text += f"\n\nThis trains to {config.steps:,} steps; the weights here are those at {moment.steps:,}."
    if plain.get("init"):
        text += "\n\nThe run started from the weights of another run (`--init`), which are needed besides."
    return text
