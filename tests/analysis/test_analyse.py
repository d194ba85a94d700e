"""Analyses: what discriminators believe, values, levels, and measurements during training."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dcpg
from dcpg.analysis import analyse as offline
from dcpg.analysis.pictures import hardest_and_easiest
from dcpg.analysis.sample import rollouts
from dcpg.config.build import splits
from dcpg.config.resolve import resolve
from dcpg.core.collector import collect
from dcpg.core.observer import LoopObserver
from dcpg.core.rollout import Rollout
from dcpg.core.stiffness import stiffness
from dcpg.core.wrong_actions import MOVES, NO_OP, SPECIAL_ACTIONS, Counts, believed_actions
from dcpg.envs.procgen import GAMES, Procgen
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.runs import export
from dcpg.runs.agent import load_agent
from dcpg.seeding import generator
from dcpg.storage.rows import read_rows
from dcpg.storage.rundir import RunDirectory
from dcpg.training.measure import Measurements
from tests import small
from tests.cli.test_cli import run as command
from tests.small import ACTIONS, declare, in_training, network_of, rollout_of
from tests.synthetic import rows_of

TINY = {"evaluation.every": 2, "evaluation.episodes": 4, "evaluation.max_steps": 60}
SMALL = TINY | small.SMALL


@pytest.fixture(scope="module")
def ddcpg_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the tests, which write only below its folder `analysis`."""
    out = tmp_path_factory.mktemp("analysis") / "run"
    settings = SMALL | {"analyse": "stiffness,ood-actions"}
    dcpg.train("ddcpg", game="bigfish", preset="tiny", steps=512, seed=2, out=out, settings=settings)
    return out


def make(num_envs: int, seed: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")


# -- wrong actions


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), st.lists(st.integers(0, 8), max_size=20))
def test_counts_have_the_moments_of_their_numbers(numbers: list[int], more: list[int]) -> None:
    counts = Counts.of(torch.tensor(numbers), 9)
    both = counts + Counts.of(torch.tensor(more, dtype=torch.int64), 9)
    assert counts.total == len(numbers)
    assert counts.mean == pytest.approx(np.mean(numbers))
    assert counts.std == pytest.approx(np.std(numbers, ddof=1) if len(numbers) > 1 else 0.0)
    assert both.mean == pytest.approx(np.mean(numbers + more))


@pytest.mark.parametrize("game", ["bigfish", "starpilot"])
def test_believed_actions_equal_one_question_at_a_time(game: str) -> None:
    method, _ = declare("ddcpg")
    network = network_of(method)
    tau = rollout_of(method, network, dead=True)
    g = torch.Generator().manual_seed(0)
    tau = dataclasses.replace(tau, actions=torch.randint(0, 15, tau.actions.shape, generator=g))
    f = network.get_submodule("discriminator")
    wide = torch.nn.Linear(2 * 16 + 15, f[0].out_features)  # fifteen actions, as Procgen has
    with torch.no_grad():
        wide.weight.copy_(torch.randn(wide.weight.shape, generator=g))
        f[4].bias.copy_(torch.tensor([0.1]))
    f[0], f.actions = wide, 15
    wrong, raw, true = [], [], 0
    for t in range(tau.actions.shape[0]):
        for n in range(tau.actions.shape[1]):
            if not tau.valid[t, n] or tau.dones[t, n]:
                continue
            taken = int(tau.actions[t, n])
            here, there = (network.encode("theta", tau.frames[k, n][None], 8) for k in (t, t + 1))
            with torch.no_grad():
                asked = [float(torch.sigmoid(f.logit(here, torch.tensor([a]), there))) > 0.5 for a in range(15)]
            true += asked[taken]
            raw.append(sum(asked[a] for a in range(9) if a != taken))
            does = taken if taken < 9 else 4
            if taken < 9 or game == "bigfish":
                wrong.append(sum(asked[a] for a in range(9) if a != does))
    found = believed_actions(network, tau, game, 15, chunk=5)
    assert 0 < sum(wrong) < 8 * len(wrong)
    assert (found.counts.total, found.raw.total, found.true_believed) == (len(wrong), len(raw), true)
    assert found.counts.mean == pytest.approx(np.mean(wrong))
    assert found.raw.mean == pytest.approx(np.mean(raw))
    assert found.raw.std == pytest.approx(np.std(raw, ddof=1))
    assert (len(wrong) < len(raw)) == (game in SPECIAL_ACTIONS)


@pytest.mark.parametrize("game", GAMES)
def test_special_actions_do_something_where_it_is_said(game: str) -> None:
    """Procgen itself decides: from the same states, does a special action ever differ from the no-op?"""
    env = Procgen(16, game, seed=5, count=200)
    rng = np.random.default_rng(0)
    differs = set()
    for _ in range(12):
        for _ in range(8):
            env.step(rng.integers(0, 15, 16))
        state = env.state()

        def future(action: int, state: list[bytes] = state) -> list[np.ndarray]:
            env.restore(state)
            steps = [env.step(np.full(16, a)) for a in (action, NO_OP, NO_OP, NO_OP)]
            return [s.frames for s in steps] + [s.rewards for s in steps]

        usual = future(NO_OP)
        for action in range(MOVES, 15):
            if any(not np.array_equal(a, b) for a, b in zip(usual, future(action), strict=True)):
                differs.add(action)
        env.restore(state)
    env.close()
    assert bool(differs) == (game in SPECIAL_ACTIONS), differs


# -- measurements during training


@pytest.mark.parametrize("name", ["ppo", "dcpg", "separate-dcpg"])
def test_the_hook_sees_each_rollout_once_at_the_parameters_that_acted(name: str) -> None:
    seen = []

    class Looking(LoopObserver):
        def before_update(self, tau: Rollout) -> None:
            actor = algorithm.collector.actor
            log_policies = torch.stack([actor.log_policy(frames.numpy()) for frames in tau.frames[:-1]])
            now = log_policies.gather(2, tau.actions[..., None]).squeeze(2)
            seen.append(float((now - tau.log_probs).abs().max()))

    algorithm = in_training(name, observer=Looking())
    for _ in range(4):
        algorithm.rollout()
    assert len(seen) == 4
    assert max(seen) < 1e-6
    moved = algorithm.collector.actor.log_policy(torch.zeros(1, 16, 16, 3, dtype=torch.uint8).numpy())
    assert float((moved - moved.mean()).abs().max()) > 1e-4  # the policy did learn in between


def test_live_columns_equal_the_analyses_themselves() -> None:
    config = resolve("ddcpg", "own:test", settings={"analyse": "stiffness,ood-actions", "machine.chunk": 7})
    method, _ = declare("ddcpg")
    network = network_of(method)
    tau = rollout_of(method, network, dead=True)
    measurements = Measurements(config, network, ACTIONS)
    assert measurements.measure(tau, 0, lambda: None)
    row = measurements.columns
    keep = tau.valid.flatten()
    frames, returns = tau.frames[:-1].flatten(0, 1)[keep], tau.returns["value"].flatten()[keep]
    expected = stiffness(network, "value", frames, returns, 100)
    assert row["stiffness_states"] == expected.states == 23
    assert row["stiffness"] == pytest.approx(expected.stiffness, abs=1e-7)
    assert row["ood_actions"] == pytest.approx(believed_actions(network, tau, "own:test", 5, 9).counts.mean)
    unasked = Measurements(resolve("ddcpg", "bigfish"), network, ACTIONS)
    assert not unasked.measure(tau, 0, lambda: None)
    assert unasked.columns == {}


def test_ood_actions_need_a_discriminator() -> None:
    having = []
    for name in METHODS:
        try:
            resolve(name, "bigfish", settings={"analyse": "ood-actions"})
            having.append(name)
        except BadInput as error:
            assert "discriminator" in str(error)  # noqa: PT017
    assert having == ["dppg", "dcpg+f", "dcpg+i", "dcpg+fi", "ddcpg"]


def test_measuring_changes_nothing_else(tmp_path: Path) -> None:
    for out, more in (("plain", {}), ("measured", {"analyse": "stiffness", "analyse_every": 2})):
        dcpg.train("dcpg", game="starpilot", preset="tiny", steps=512, out=tmp_path / out, settings=SMALL | more)
    plain, measured = (read_rows(tmp_path / out / "metrics.jsonl") for out in ("plain", "measured"))
    assert ["stiffness" in row for row in measured] == [True, False, True, False]
    assert plain == [{k: v for k, v in row.items() if not k.startswith("stiffness")} for row in measured]


# -- of a run on disk


def test_fresh_rollouts_do_not_touch_the_agent(ddcpg_run: Path) -> None:
    agent = load_agent(ddcpg_run)
    before = agent.normaliser.state()
    taus = list(rollouts(agent, 300))
    assert [len(tau) for tau in taus] == [128, 128, 128]
    assert agent.normaliser.state() == before
    assert set(torch.cat([tau.levels.flatten() for tau in taus]).tolist()) <= set(range(200))
    again = list(rollouts(load_agent(ddcpg_run), 300))
    assert all(torch.equal(a.frames, b.frames) for a, b in zip(taus, again, strict=True))


def test_a_burn_in_moves_the_environments_away_from_their_first_states(ddcpg_run: Path) -> None:
    """It is the same play, whose first steps are not seen: one action per environment and step, drawn as it says."""
    agent = load_agent(ddcpg_run)
    c = agent.config
    env = splits(c, None)["train"](c.env.num_envs, agent.k)
    for first, length in ((0, c.rollout_length), (c.rollout_length, 5)):  # no more than a rollout at once
        g = generator(c.seed, "analyse", agent.steps, "burn-in", first)
        uniform = torch.rand(length, c.env.num_envs, generator=g, dtype=torch.float64)
        frames = collect(env, agent.actor, uniform, lambda: None).frames
    env.close()
    (at_once,), (later,) = (list(rollouts(agent, 1, burn_in=n)) for n in (0, c.rollout_length + 5))
    assert torch.equal(later.frames[0], frames[-1])
    assert not torch.equal(later.frames[0], at_once.frames[0])
    found = [offline.stiffness_of(agent, RunDirectory(ddcpg_run), 128, burn_in=n)["stiffness"] for n in (0, 21)]
    assert found[0] != found[1]
    kept = dcpg.analyse(ddcpg_run, "ood-actions", states=128, burn_in=21)
    assert kept["asked"] == {"states": 128, "burn_in": 21}
    expected = offline.ood_actions_of(agent, RunDirectory(ddcpg_run), 128, burn_in=21)
    assert {name: kept[name] for name in expected} == expected
    with pytest.raises(BadInput, match="burn_in must be at least 0; got -1"):
        dcpg.analyse(ddcpg_run, "ood-actions", burn_in=-1)
    with pytest.raises(BadInput, match="burn_in means nothing to levels"):
        dcpg.analyse(ddcpg_run, "levels", burn_in=5)


def test_stiffness_of_a_run(ddcpg_run: Path) -> None:
    agent = load_agent(ddcpg_run)
    found = offline.stiffness_of(agent, RunDirectory(ddcpg_run), 200)
    taus = list(rollouts(agent, 200))
    frames = torch.cat([tau.frames[:-1].flatten(0, 1) for tau in taus])[:200]
    returns = torch.cat([tau.returns["value"].flatten() for tau in taus])[:200]
    expected = stiffness(agent.network, "value", frames, returns, 1000)
    assert found["stiffness"] == pytest.approx(expected.stiffness, abs=1e-6)
    assert found["states"] == 200
    recorded = [row["stiffness"] for row in read_rows(ddcpg_run / "metrics.jsonl")]
    assert found["recorded"]["stiffness"] == recorded
    assert found["recorded_mean"] == pytest.approx(np.mean(recorded))


def test_values_are_those_of_the_evaluations(ddcpg_run: Path) -> None:
    rows = read_rows(ddcpg_run / "eval.jsonl")
    found = offline.values_of(RunDirectory(ddcpg_run))
    assert found["steps"] == [row["steps"] for row in rows]
    for split in ("train", "test"):
        bias = [row[f"{split}_predicted_value"] - row[f"{split}_true_value"] for row in rows]
        assert found[split]["bias_true"] == pytest.approx(bias)
        assert found[split]["mean_bias_true"] == pytest.approx(np.mean(bias))
        assert found[split]["true_own_gamma"] == [row[f"{split}_true_value_own_gamma"] for row in rows]


def test_levels_are_played_once_each(ddcpg_run: Path) -> None:
    agent = load_agent(ddcpg_run)
    agent.config = dataclasses.replace(
        agent.config, evaluation=dataclasses.replace(agent.config.evaluation, max_steps=60)
    )
    found = offline.levels_of(agent, count=6, episodes=2)
    assert found["train"]["levels"] == [0, 1, 2, 3, 4, 5]
    unseen = found["test"]["levels"]
    assert len(set(unseen)) == 6
    assert not set(unseen) & set(range(200))
    assert found["gap"] == pytest.approx(np.mean(found["train"]["returns"]) - np.mean(found["test"]["returns"]))
    for split in ("train", "test"):
        by_level = dict(zip(found[split]["levels"], found[split]["returns"], strict=True))
        assert found[split]["unsolved"] == [level for level, r in by_level.items() if r == 0]
        hard, easy = hardest_and_easiest(found, split)
        returns = found[split]["returns"]
        assert [returns[i] for i in hard] == sorted(returns)[:3]
        assert [returns[i] for i in easy] == sorted(returns)[::-1][:3]
    assert offline.levels_of(agent, count=6, episodes=2) == found


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("stiffness", ["--states", "64", "--burn-in", "8"]),
        ("values", []),
        ("ood-actions", ["--states", "64", "--burn-in", "8"]),
        ("levels", ["--levels", "2"]),
    ],
)
def test_the_command_shows_and_keeps_each(
    name: str, more: list[str], ddcpg_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command(capsys, "analyse", name, str(ddcpg_run), *more)
    assert code == 0
    assert f"analysis/{name}.png" in out
    code, out, _ = command(capsys, "analyse", name, str(ddcpg_run), *more, "--json")
    assert code == 0
    printed = json.loads(out)
    kept = json.loads((ddcpg_run / "analysis" / f"{name}.json").read_text())
    assert printed == kept
    assert (kept["analysis"], kept["method"], kept["game"], kept["seed"]) == (name, "ddcpg", "bigfish", 2)
    picture = (ddcpg_run / "analysis" / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000


def test_what_cannot_be_analysed_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    dcpg.train("dcpg", game="bigfish", preset="tiny", steps=128, out=out, settings=SMALL)
    code, _, said = command(capsys, "analyse", "ood-actions", str(out))
    assert (code, "no discriminator" in said) == (2, True)
    (out / "eval.jsonl").write_text("")
    code, _, said = command(capsys, "analyse", "values", str(out))
    assert (code, "no evaluation" in said) == (2, True)
    code, _, said = command(capsys, "analyse", "stiffness", str(tmp_path / "nothing"))
    assert (code, "no run" in said) == (2, True)
    code, _, said = command(capsys, "analyse", "values", str(out), "--states", "9")
    assert (code, "states means nothing to values" in said) == (2, True)
    row = rows_of(resolve("dcpg", "bigfish", preset="tiny", steps=128), random.Random(0), rollouts=(1,))[0]
    (out / "eval.jsonl").write_text(json.dumps(row | {"train_return": "much"}) + "\n")
    code, _, said = command(capsys, "analyse", "values", str(out))
    assert (code, "eval.jsonl, row 1: train_return has the value" in said) == (2, True)
    assert not (out / "analysis").exists()


def test_an_export_is_analysed_as_its_run_is(ddcpg_run: Path, tmp_path: Path) -> None:
    folder = export.write(ddcpg_run, tmp_path / "export")
    found = dcpg.analyse(folder, "ood-actions", states=100, burn_in=20)
    assert found == dcpg.analyse(ddcpg_run, "ood-actions", states=100, burn_in=20)
    at_start = dcpg.analyse(ddcpg_run, "stiffness", states=100, burn_in=0, at=0)
    assert at_start["steps"] == 0
    assert (ddcpg_run / "analysis" / "stiffness-000000000000.json").is_file()


def test_your_own_environment_is_analysed_from_python(tmp_path: Path) -> None:
    run = dcpg.train("ddcpg", env=make, preset="tiny", steps=256, out=tmp_path / "own", settings=TINY)
    assert dcpg.analyse(run, "stiffness", states=64, env=make)["states"] == 64
    assert dcpg.analyse(run, "ood-actions", states=64, env=make)["left_out"] == 0
    assert "test" not in dcpg.analyse(run, "values")
    with pytest.raises(BadInput, match="only on Procgen"):
        dcpg.analyse(run, "levels", env=make)
    (one,) = dcpg.api.analyse_all(tmp_path, analysis="levels", env=make)
    assert (one.state, one.reason) == ("left out", "Levels can be played one by one only on Procgen.")


def test_levels_that_were_never_seen_are_not_searched_for_ever() -> None:
    """With nearly all levels known, a draw would hardly ever meet another one."""
    rng = np.random.default_rng(0)
    with pytest.raises(BadInput, match="Nearly every level is a training level"):
        offline._drawn(rng, 200, range(offline.ALL_LEVELS - 200))
    half = offline._drawn(rng, 200, range(offline.ALL_LEVELS // 2))
    assert len(set(half)) == 200
    assert min(half) >= offline.ALL_LEVELS // 2
