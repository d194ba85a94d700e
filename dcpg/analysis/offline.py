"""The analyses of a run that is on disk: each gives plain data, which `dcpg analyse` shows and keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch

from dcpg import evaluation
from dcpg.agent import Agent
from dcpg.analysis.actions import HEAD, believed_actions
from dcpg.analysis.sample import rollouts
from dcpg.analysis.stiffness import parameters_of, stiffness
from dcpg.api import ROUND
from dcpg.config import OWN
from dcpg.envs.make import make_levels
from dcpg.envs.procgen import ALL_LEVELS
from dcpg.errors import BadInput
from dcpg.rundir import RunDirectory, read_rows
from dcpg.seeding import key

Said = Callable[[str], None]


def stiffness_of(agent: Agent, run: RunDirectory, states: int) -> dict[str, Any]:
    """On fresh rollouts at the agent's parameters; what the run measured while it trained stands beside it."""
    head = agent.method.advantages
    taus = list(rollouts(agent, states))
    frames = torch.cat([tau.frames[:-1].flatten(0, 1) for tau in taus])[:states]
    returns = torch.cat([tau.returns[head].flatten() for tau in taus])[:states]
    found = stiffness(agent.network, head, frames, returns, agent.config.machine.chunk)
    if found.states < 2:
        raise BadInput("No two states have a value gradient: there is nothing to compare.")
    recorded = [row for row in read_rows(run.metrics.path) if "stiffness" in row]
    return {
        "stiffness": found.stiffness,
        "sign_free": found.sign_free,
        "sign_agreement": found.sign_agreement,
        "states": found.states,
        "parameters": sum(p.numel() for p in parameters_of(agent.network, head)),
        "levels": agent.config.levels.count if not agent.config.levels.seeds else len(agent.config.levels.seeds),
        "recorded": {
            "steps": [row["steps"] for row in recorded],
            "stiffness": [row["stiffness"] for row in recorded],
            "sign_free": [row["stiffness_sign_free"] for row in recorded],
            "sign_agreement": [row["stiffness_sign_agreement"] for row in recorded],
        },
        "recorded_mean": float(np.mean([row["stiffness"] for row in recorded])) if recorded else None,
    }


def ood_actions_of(agent: Agent, run: RunDirectory, states: int) -> dict[str, Any]:
    """On fresh rollouts on the training levels."""
    if HEAD not in agent.network.stands_on:
        raise BadInput(
            f"{agent.config.method} has no discriminator to ask; ood-actions is for ddcpg, dcpg+f, dcpg+i, dcpg+fi and "
            "dppg."
        )
    c = agent.config
    chunk, actions = c.machine.chunk, agent.env.num_actions
    found = reduce(
        add, (believed_actions(agent.network, tau, c.game, actions, chunk) for tau in rollouts(agent, states))
    )
    if not found.counts.total:
        raise BadInput("No transition can be counted: every action taken is a special one.")
    return {
        "mean": found.counts.mean,
        "std": found.counts.std,
        "counts": list(found.counts.transitions),
        "transitions": found.counts.total,
        "raw_mean": found.raw.mean,
        "raw_std": found.raw.std,
        "raw_counts": list(found.raw.transitions),
        "left_out": found.raw.total - found.counts.total,
        "true_believed": found.true_believed / found.raw.total,
    }


def values_of(run: RunDirectory) -> dict[str, Any]:
    """Predicted and true value of initial states at every evaluation, with the paper's discount and the method's."""
    rows = read_rows(run.evaluations.path)
    if not rows:
        raise BadInput(f"{run.evaluations.path} has no evaluation yet.")
    found: dict[str, Any] = {"steps": [row["steps"] for row in rows], "gamma": evaluation.PAPER_GAMMA}
    for split in ("train", "test"):
        if f"{split}_predicted_value" not in rows[-1]:
            continue  # an environment of one's own without unseen levels
        columns = {
            name: np.array([row[f"{split}_{column}"] for row in rows], float)
            for name, column in (
                ("predicted", "predicted_value"), ("true", "true_value"), ("true_own_gamma", "true_value_own_gamma"),
            )
        }  # fmt: skip
        found[split] = {name: column.tolist() for name, column in columns.items()}
        for name in ("true", "true_own_gamma"):
            found[split][f"bias_{name}"] = (columns["predicted"] - columns[name]).tolist()
            found[split][f"mean_bias_{name}"] = float(np.mean(columns["predicted"] - columns[name]))
    return found


def levels_of(agent: Agent, count: int, episodes: int, said: Said = lambda text: None) -> dict[str, Any]:
    """The return on each of the training levels (at most `count`) and on as many levels that were never seen."""
    c = agent.config
    if c.game.startswith(OWN):
        raise BadInput("Levels can be played one by one only on Procgen.")
    known = list(c.levels.seeds) or list(range(c.levels.start, c.levels.start + c.levels.count))
    rng = np.random.default_rng(key(c.seed, "analyse", "levels"))
    train = known[:count] if known else sorted(rng.choice(ALL_LEVELS, count, replace=False).tolist())
    seen, test = set(known), list[int]()
    while len(test) < len(train):
        level = int(rng.integers(ALL_LEVELS))
        if level not in seen:
            seen.add(level)
            test.append(level)
    found: dict[str, Any] = {"episodes": episodes}
    for split, levels in (("train", train), ("test", sorted(test))):
        said(f"{len(levels)} {'training' if split == 'train' else 'unseen'} levels")
        returns = _play(agent, levels, episodes)
        found[split] = {
            "levels": levels,
            "returns": returns.mean(1).tolist(),
            "mean": float(returns.mean()),
            "unsolved": [level for level, r in zip(levels, returns, strict=True) if (r <= 0).all()],
        }
    found["gap"] = found["train"]["mean"] - found["test"]["mean"]
    return found


def hardest_and_easiest(result: dict[str, Any], split: str, most: int = 5) -> tuple[list[int], list[int]]:
    """Positions of the levels with the lowest and the highest returns."""
    order = np.argsort(result[split]["returns"], kind="stable")
    most = min(most, len(order) // 2)
    return order[:most].tolist(), order[::-1][:most].tolist()


def _play(agent: Agent, levels: Sequence[int], episodes: int) -> np.ndarray[Any, Any]:
    """[levels, episodes]."""
    c, protocol = agent.config, evaluation.Protocol.of(agent.config)
    columns = []
    for episode in range(episodes):
        column: list[float] = []
        for first in range(0, len(levels), ROUND):
            env = make_levels(c, levels[first : first + ROUND])
            at = (c.seed, "eval", f"levels-{levels[first]}-{episode}", agent.k)
            column += evaluation.play(env, agent.actor, agent.normaliser, protocol, at).returns
            env.close()
        columns.append(column)
    return np.array(columns).T
