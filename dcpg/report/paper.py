"""The numbers that the paper prints, and published PPO curves to compare PPO runs with."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg.errors import BadInput, unknown

GAME_TITLES = {
    "bigfish": "BigFish", "bossfight": "BossFight", "caveflyer": "CaveFlyer", "chaser": "Chaser", "climber": "Climber",
    "coinrun": "CoinRun", "dodgeball": "Dodgeball", "fruitbot": "FruitBot", "heist": "Heist", "jumper": "Jumper",
    "leaper": "Leaper", "maze": "Maze", "miner": "Miner", "ninja": "Ninja", "plunder": "Plunder",
    "starpilot": "StarPilot",
}  # fmt: skip
METHOD_TITLES = {
    "ppo": "PPO", "ucb-drac": "UCB-DrAC", "plr": "PLR", "daac": "DAAC", "idaac": "IDAAC", "ppg": "PPG",
    "ppg+dr": "PPG+DR", "ppg+ar": "PPG+AR", "dppg": "DPPG", "dcpg": "DCPG", "separate-dcpg": "Separate DCPG",
    "dcpg+f": "DCPG+F", "dcpg+i": "DCPG+I", "dcpg+fi": "DCPG+FI", "ddcpg": "DDCPG",
}  # fmt: skip
STEPS = 25_000_000
SEEDS = 10


@dataclass(frozen=True)
class Printed:
    """A number as the paper prints it."""

    mean: float
    std: float | None  # None if the mean was computed from printed means


@functools.cache
def printed() -> dict[tuple[str, str, str, str], Printed]:
    """(train or test, quantity, game, method) -> number; quantities: return, ppo_normalised_score, ood_actions."""
    return {
        (row["levels"], row["quantity"], row["game"], row["method"]): Printed(float(row["mean"]), float(row["std"]))
        for row in _rows("paper_results.csv")
    }


def paper_results(split: str, method: str) -> dict[str, NDArray[Any]]:
    """Game -> the mean return that the paper prints, as the scores of a single seed."""
    found: dict[str, dict[str, NDArray[Any]]] = {}  # by method
    for (levels, quantity, game, name), number in printed().items():
        if (levels, quantity) == (split, "return"):
            found.setdefault(name, {})[game] = np.array([number.mean])
    if not found:
        raise BadInput(f"The paper prints no 'return' on {split!r} levels.")
    if method not in found:
        raise unknown("method", method, found)
    return found[method]


@functools.cache
def ppo_band() -> dict[str, dict[str, NDArray[Any]]]:
    """Game -> steps, train and test returns of OpenAI's PPO (easy mode, 200 levels, mean of three runs)."""
    games: dict[str, list[dict[str, str]]] = {}
    for row in _rows("ppo_band.csv"):
        games.setdefault(row["game"], []).append(row)
    return {
        game: {
            "steps": np.array([int(row["steps"]) for row in rows]),
            "train": np.array([float(row["train_return"]) for row in rows]),
            "test": np.array([float(row["test_return"]) for row in rows]),
        }
        for game, rows in games.items()
    }


def method_title(label: str) -> str:
    """A method as the paper writes it, followed by the variant if it is one."""
    name, space, variant = label.partition(" ")
    return METHOD_TITLES.get(name, name) + space + variant


def game_title(game: str) -> str:
    """A game as the paper writes it; your own environment by its name."""
    return GAME_TITLES.get(game, game.removeprefix("own:"))


def _rows(name: str) -> list[dict[str, str]]:
    text = (resources.files("dcpg.report") / "data" / name).read_text()
    return list(csv.DictReader(text.splitlines()))
