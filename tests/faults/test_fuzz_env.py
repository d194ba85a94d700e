"""Fault 38: environments of people's own whose outputs are not what their spaces say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults import driver, odd_env
from tests.faults.driver import Driver, each, settings
from tests.faults.fuzz import DRAWN, SCALE, Field, Verdict, seeded, wrong_with

pytestmark = pytest.mark.faults

MAKE = f"{Path(odd_env.__file__)}:make"
TRAIN = ["train", "ppo", "--env", MAKE, "--preset", "tiny", "--steps", "128", "--out", "RUN"]
SMALL = ("env.num_envs=4", "rollout_length=16", "evaluation.episodes=2", "evaluation.max_steps=9", "machine.threads=1")

wrong = st.dictionaries(st.sampled_from(odd_env.OUTPUTS), st.sampled_from(odd_env.WAYS), min_size=1, max_size=2)
cases = st.fixed_dictionaries({"wrong": wrong, "first": st.sampled_from((0, 0, 3, 20))})


def train(runs: Driver, out: Path, what: dict[str, Any]) -> list[driver.Ended]:
    """Train, stop in the middle and resume, as far as it goes."""
    env = {"ODD": json.dumps(what)}
    first = runs.start(
        [*TRAIN[:-1], str(out), *settings(*SMALL)], "bounded", "at policy 20 SIGTERM", cwd=out.parent, env=env
    ).killed_after(40)
    if first.code != 75:
        return [first]
    again = runs.start(["resume", str(out), "--env", MAKE], "bounded", cwd=out.parent, env=env).killed_after(40)
    return [first, again]


def test_an_environment_that_is_right(runs: Driver, tmp_path: Path) -> None:
    assert [ended.code for ended in train(runs, tmp_path / "run", {})] == [75, 0]


def test_outputs_of_environments(runs: Driver, tmp_path: Path) -> None:
    """Refused with a sentence, or trained, saved and resumed to the end: work that was saved is never lost."""
    field = Field(runs, tmp_path, tmp_path)
    drawn: list[dict[str, Any]] = []

    @seeded(32 * DRAWN)
    @given(cases)
    def draw(what: dict[str, Any]) -> None:
        if what not in drawn and len(drawn) < 32 * SCALE:
            drawn.append(what)

    def work(number: int) -> None:
        ended = train(runs, tmp_path / str(number), drawn[number])
        says = wrong_with(ended[0]) or (wrong_with(ended[1]) or saved_work_is_lost(ended[1]) if ended[1:] else "")
        command = "resume" if ended[1:] else "train"
        field.note(Verdict(json.dumps(drawn[number]), command, says, ended[-1].err[-1500:]))

    draw()
    each(range(len(drawn)), work)
    field.conclude("38 outputs of environments changed at random")


def saved_work_is_lost(ended: driver.Ended) -> str:
    """Whether no checkpoint was valid; an environment that becomes wrong later on is refused then."""
    return "saved, and no checkpoint is valid" if ended.code == 4 else ""
