"""A run's agent as a folder to publish: weights, configuration, model card and video, laid out for Hugging Face."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from dcpg.config.command import train_command
from dcpg.config.environments import can_be_typed
from dcpg.config.identity import without_folder
from dcpg.config.presets import PRESETS
from dcpg.config.schema import OWN, Config
from dcpg.config.written import ENVIRONMENT, EXPORT, PLUGINS, Written, parse_written, read_written
from dcpg.envs.procgen import ALL_LEVELS
from dcpg.errors import BadInput, Notice, NoValidCheckpoint, StorageFailed
from dcpg.extras import need
from dcpg.methods import METHODS
from dcpg.runs.agent import Agent, load_agent
from dcpg.runs.evaluate import environments_to_record, evaluate_agent, half_width
from dcpg.runs.records import changed_rows, read_run
from dcpg.storage.files import check_not_held, discard, dump, fsync_dir, held, read_json, write_durable
from dcpg.storage.rows import SPLITS, Evaluation, hash_of_first, read
from dcpg.storage.rundir import MOST_CONFIGURATION, RunDirectory
from dcpg.text import counted, markdown, markdown_block, markdown_code, one_line, option
from dcpg.training.state import read_tensors
from dcpg.training.weights import WEIGHTS, Moment, find

CONFIG, CARD, REPLAY = "config.json", "README.md", "replay.mp4"
FILES = {WEIGHTS, CONFIG, CARD, REPLAY}
Returns = Mapping[str, list[float]]  # split -> the returns of its episodes

CITATION = """@inproceedings{moon2022rethinking,
  title     = {Rethinking Value Function Learning for Generalization in Reinforcement Learning},
  author    = {Moon, Seungyong and Lee, JunYeong and Song, Hyun Oh},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2022}
}"""


def write(
    directory: Path, out: Path | None = None, at: int | None = None, show: Callable[[str], None] = lambda text: None
) -> Path:
    """Export a run's newest weights, or those at `at` steps; the folder appears when it is complete."""
    run = RunDirectory(directory)
    written = read_written(run)
    if EXPORT in written.plain:
        raise BadInput(f"{directory} is an export already; export the run that it was made from.")
    if at == 0:
        raise BadInput("The untrained agent is not exported: its weights follow from the seed alone.")
    target = Path(os.path.abspath(out if out is not None else directory / "export"))
    check_replaceable(target, FILES, _is_export, "an export")
    own = written.config.game.startswith(OWN)
    if not own:
        need("video", "The export's video")
    agent = load_agent(directory, at) if written.spaces is not None else None
    moment = agent.moment if agent is not None else find(run, written, at)
    public, (notes, believed) = parse_written(public_config(written)), _notes(directory)
    for note in notes:
        show(f"Note: {note}.")
    believed = believed and moment.between and _is_vouched_for(run, written, moment)
    returns = returns_of(run, moment, believed, None if own else agent, show)
    files = {
        WEIGHTS: _checked(moment, directory),
        CONFIG: dump({**public.plain, "init": None, EXPORT: _about(moment, written)}, indent=2),
        CARD: card(public, moment, returns, notes).encode(),
    }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(target) as temporary:
            for name, data in files.items():
                write_durable(temporary / name, data)
            if agent is not None and not own:
                from dcpg.runs import video

                show("Recording the agent on unseen levels ...")
                video.record(agent, environments_to_record(agent, "test"), temporary / REPLAY)
    except OSError as error:
        raise StorageFailed(f"{target} cannot be written ({error.strerror or error}).") from None
    return target


def public_config(written: Written, named: Callable[[str], str] = without_folder) -> dict[str, Any]:
    """A config.json in which files are named without their folders on this machine, environments as `named` does."""
    found = dict(written.plain)
    if written.init:
        found["init"] = os.path.basename(written.init)
    if written.environment is not None:
        found[ENVIRONMENT] = written.environment.renamed(named).plain()
    if written.plugins:
        found[PLUGINS] = [{**one, "plugin": without_folder(one["plugin"])} for one in written.plugins]
    return found


def _is_export(folder: Path) -> bool:
    return EXPORT in read_json(folder / CONFIG, MOST_CONFIGURATION)


def check_replaceable(target: Path, names: Collection[str], recognises: Callable[[Path], bool], what: str) -> None:
    """Refuse a folder that holds anything but `what` from an earlier time: it would be lost.

    Such a folder has no files and folders but those with `names`, and `recognises` accepts it. The folders beside it
    that an export makes for a while, and that one that was killed has left, need not be whole.
    """
    for beside in _beside(target):
        _check_contents(beside, {*names, *(f".tmp-{name}" for name in names)}, f"an unfinished {target.name}")
    if not _check_contents(target, names, what):
        return
    try:
        known = recognises(target)
    except (OSError, ValueError, TypeError):
        known = False
    if not known:
        raise BadInput(f"{target} already exists and is not {what}; choose another {option('out')}.")


def _check_contents(target: Path, names: Collection[str], what: str) -> bool:
    """Whether there is anything in a folder; BadInput if it is none, or holds what `what` does not."""
    advice = f"choose another {option('out')}."
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise BadInput(f"{target} is not a folder; {advice}")
    found = sorted(target.iterdir()) if target.exists() else []
    for path in found:
        inside = list(path.iterdir()) if path.name in names and path.is_dir() and not path.is_symlink() else []
        for one in (path, *inside):
            if str(one.relative_to(target)) not in names or (one in inside and not one.is_file()):
                raise BadInput(f"{target} holds {one.relative_to(target)}, which is no part of {what}; {advice}")
    return bool(found)


def _beside(target: Path) -> tuple[Path, Path]:
    """Where an export is made, and where an earlier one is until the new one has its place."""
    return target.with_name(f".tmp-{target.name}"), target.with_name(f".old-{target.name}")


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """A new folder that takes the place of `target` at the end; an earlier export there is removed last."""
    temporary, before = _beside(target)
    check_not_held(temporary, target)
    discard(temporary)
    try:
        temporary.mkdir()
        with held(temporary):
            yield temporary
        fsync_dir(temporary)
        discard(before)
        if target.exists():
            os.replace(target, before)
        try:
            os.replace(temporary, target)
        except OSError:
            if before.exists():
                os.replace(before, target)
            raise
        fsync_dir(target.parent)
        discard(before)
    finally:
        discard(temporary)


def _checked(moment: Moment, directory: Path) -> bytes:
    """The weights, which are tensors at least: older runs on your own environment do not say for which network."""
    assert moment.weights is not None
    if moment.damaged:  # nobody asked to publish older ones
        raise NoValidCheckpoint(
            f"The newest checkpoint of {directory} is damaged ({'; '.join(moment.damaged)}); resume the run to mend "
            f"it, or export weights by their steps with {option('at')}."
        )
    try:
        read_tensors(moment.weights)
    except ValueError as error:
        raise NoValidCheckpoint(f"{directory}: the weights cannot be read: {error}.") from None
    return moment.weights


def _about(moment: Moment, written: Written) -> dict[str, Any]:
    assert moment.weights is not None
    return {
        "steps": moment.steps,
        "evaluation": moment.k,
        # the running sums belong to the training environments, not to the agent
        "normaliser": {**moment.normaliser.state(), "sums": []},
        "sha256": hashlib.sha256(moment.weights).hexdigest(),
        "config": written.fingerprint,
    }


def _is_vouched_for(run: RunDirectory, written: Written, moment: Moment) -> bool:
    """Whether the evaluation of these weights is as the run wrote it, by the hash that a checkpoint has of the rows.

    A milestone is written before its evaluation and has none; the newest checkpoint has one of all rows before it.
    """
    rows = moment.rows
    if rows is None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Notice)
                rows = find(run, written).rows
        except NoValidCheckpoint:
            return False
    # checkpoints of older releases have no hash
    return rows is None or (moment.k < rows[0] and hash_of_first(run.evaluations.path, rows[0]) == rows[1])


def returns_of(
    run: RunDirectory, moment: Moment, believed: bool, agent: Agent | None, show: Callable[[str], None]
) -> Returns:
    """The returns of the exported weights, unseen levels first: from the run's own evaluation, or played now."""
    for row in read(run.evaluations.path, Evaluation) if believed else []:
        if (row.k, row.steps) == (moment.k, moment.steps):
            return {split: row.splits[split].returns or [] for split in reversed(SPLITS) if split in row.splits}
    if agent is None:
        return {}
    show("These weights have no evaluation of their own; evaluating them ...")
    return {split: evaluate_agent(agent, split)["returns"] for split in reversed(SPLITS)}


def _code(written: Written) -> str:
    """The imports that declare what the agent needs from outside of dcpg; what is no module's name is only named."""
    lines = []
    for plugin in dict.fromkeys(one_line(one["plugin"]) for one in written.plugins):
        module = plugin.removesuffix(".py")
        is_name = all(part.isidentifier() for part in module.split("."))
        lines.append(f"import {module}  # declares" if is_name else f"# import {plugin} here: it declares")
    return "".join(f"{line} the agent's method or encoder\n" for line in lines)


def train_again(written: Written) -> str:
    """`dcpg train ...` that resolves to the same configuration on every machine."""
    config = written.config
    words = train_command(config, None, written.environment, written.plugins)
    # the number of threads is taken from the machine unless it is given, and results depend on it to the last bit
    if "machine.threads=" not in words and "machine.threads" not in PRESETS[config.preset]:
        words += f" --set machine.threads={config.machine.threads}"
    return words


# -- the model card

TEXT = """---
library_name: dcpg
pipeline_tag: reinforcement-learning
license: mit
tags: [reinforcement-learning, dcpg, {family}, {tag}]
model-index: {index}
---

# {title}

An agent that was trained with the Python package `dcpg`, on some levels, to play levels it has never seen.

| | |
|---|---|
| method | {method}: {summary} |
| game | {kind} |
| seed | {c.seed} |
| steps | {steps:,} |
| preset | {preset} |
| training levels | {training} |
| unseen levels | {unseen} |

## Returns

{returns}

## Use

{use}

The weights are a safetensors file: loading it runs no code from the folder.{eval}

## Reproducing it

{again}

Computed with {versions}.

## Citation

```bibtex
{citation}
```

## Licence

MIT, as dcpg itself.
"""
USE = """import numpy as np
import dcpg
{code}
agent = dcpg.load({load}
frames = np.zeros((4, *agent.shape), agent.spaces.dtype)  # one observation or a batch
print(agent.act(frames), agent.act(frames[0], greedy=True))"""
OLD_LOAD = """"folder", env=make)  # the folder with these files
# make(num_envs, seed) -> gymnasium.vector.VectorEnv: the environment that it was trained on"""


def _notes(directory: Path) -> tuple[list[str], bool]:
    """What a report would note about the run, and whether it would believe its evaluations."""
    try:
        notes = read_run(directory)[1]
    except BadInput as error:
        return [f"reports leave this run out ({str(error).rstrip('.')})"], False
    return notes, changed_rows("eval.jsonl") not in notes


def card(written: Written, moment: Moment, returns: Returns, notes: Sequence[str] = ()) -> str:
    """The model card: metadata that Hugging Face reads (YAML, which reads JSON too), and a text."""
    c = written.config
    own, game = c.game.startswith(OWN), c.game.removeprefix(OWN)
    family = "own" if own else "procgen"
    results = [
        {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": f"{game}, {SPLITS[split]}", "type": f"{family}-{game}"},
            "metrics": [{"type": "mean_reward", "value": fmean(found), "name": f"mean return, {SPLITS[split]}"}],
        }
        for split, found in returns.items()
    ]
    return TEXT.format(
        family=family,
        tag=_metadata(f"{family}-{game}"),
        index=_metadata([{"name": f"{c.method}-{game}-{c.seed}", "results": results}]),
        c=c,
        title=markdown(f"{c.method} on {game}"),
        method=markdown_code(c.method),
        summary=markdown(METHODS[c.method].summary),
        preset=markdown_code(c.preset),
        kind=markdown(f"{game}, the author's own environment" if own else f"{game} (Procgen, {c.env.mode})"),
        steps=moment.steps,
        training="those of the environment" if own else training_levels(c),
        unseen="those of the environment" if own else f"drawn from all {ALL_LEVELS:,} level seeds of the game",
        returns="\n\n".join([_returns(returns, own), *(f"Note: {markdown(note)}." for note in notes)]),
        use=markdown_block("python", USE.format(code=_code(written), load=_load(written))),
        eval=""
        if own
        else " `dcpg eval folder` plays the agent and gives the returns above "
        "again, with the library of Procgen that is named below.",
        again=_again(written, moment, exact=not notes),
        versions=markdown(_versions(written)),
        citation=CITATION,
    )


def training_levels(config: Config) -> str:
    """The levels that a run is trained on, for a sentence."""
    c = config.levels
    words = f"level seeds {c.start} to {c.start + c.count - 1}" if c.count else "all level seeds of the game"
    if c.seeds:
        words = f"the {counted(len(c.seeds), 'level seed')} that `levels.seeds` of `{CONFIG}` lists"
    return words + (", by prioritised replay" if c.sampler == "prioritised" else "")


def _metadata(value: Any) -> str:
    """JSON for the head of the card, without what a reader that takes the head for text would take for tags."""
    found = json.dumps(value)
    for c in "<>&":
        found = found.replace(c, f"\\u{ord(c):04x}")
    return found


def _load(written: Written) -> str:
    return OLD_LOAD if written.spaces is None else '"folder")  # the folder with these files'


def _versions(written: Written) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in written.versions.items())
    libraries = ", then ".join(f"{one['library']} (pictures {one['pictures']})" for one in written.libraries)
    return f"{versions}; frames by {libraries}" if libraries else versions


def _returns(returns: Returns, own: bool) -> str:
    if not returns:
        return "These weights have no evaluation of their own."
    lines = ["| levels | mean return ± 95% | episodes |", "|---|---|---|"]
    lines += [f"| {SPLITS[s]} | {fmean(r):.2f} ± {half_width(r):.2f} | {len(r)} |" for s, r in returns.items()]
    replay = f"[{REPLAY}]({REPLAY}) shows four episodes on unseen levels."
    lines += ["", "Each episode is the first one of a new environment, with sampled actions."]
    return "\n".join([*lines, "There is no video: `dcpg record --env ...` makes one." if own else replay])


def _again(written: Written, moment: Moment, exact: bool) -> str:
    c = written.config
    again = train_again(written)
    block = markdown_block("sh", one_line(again))
    own = written.environment
    saved = ", if the run was not resumed or its environment can save its state" if own is not None else ""
    same = f"On the same machine, with the versions below, this gives the same weights{saved}."
    text = f"{block}\n\n{same}" if exact else block
    typed = own is not None and can_be_typed(own.id) and can_be_typed(own.test_id or own.id)
    if c.game.startswith(OWN) and not typed:
        call = f'dcpg.train("{c.method}", env=..., preset="{c.preset}", seed={c.seed}, steps={c.steps}, settings=...)'
        text = (
            f"There is no command for this environment; it is trained from Python, with {markdown_code(call)} and the "
            f"settings of `{CONFIG}`."
        )
    for one in written.plugins:
        text += (
            f"\n\nThe {one['kind']} {markdown_code(one['name'])} is not part of dcpg: {markdown_code(one['plugin'])} "
            f"declares it (sha256 {markdown(one['sha256'][:16])}...), and `dcpg` needs that file as "
            f"{markdown_code('--plugin ' + shlex.quote(one['plugin']))}."
        )
    if moment.steps < c.rollouts * c.rollout_size:
        text += f"\n\nThis trains to {c.steps:,} steps; the weights here are those at {moment.steps:,}."
    if written.init:
        text += "\n\nThe run started from the weights of another run (`--init`), which are needed too."
    return text
