"""Exact resume: a run stopped anywhere ends as the run that was never stopped, to the last byte."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import dcpg
from dcpg.config.resolve import resolve
from dcpg.config.written import from_json
from dcpg.errors import BadInput, Notice, NoValidCheckpoint, Stopped
from dcpg.methods import METHODS
from dcpg.runs.records import read_run
from dcpg.storage.checkpoint import sealed
from dcpg.storage.rows import read_rows
from dcpg.storage.rundir import RunDirectory
from dcpg.training import state
from dcpg.training.start import start
from dcpg.training.trainer import Trainer
from tests.faults import driver
from tests.small import each

FILES = ("weights.safetensors", "adam.safetensors", "state.json", "collector.zst")
TINY = {
    "evaluation.every": 2, "evaluation.episodes": 3, "evaluation.max_steps": 40,
    "env.frame_size": 16, "network.channels": "4,8",  # what is compared here does not depend on sizes
}  # fmt: skip


def contents(run: Path) -> dict[str, bytes]:
    """Everything that must be equal."""
    found = {name: (run / name).read_bytes() for name in ("metrics.jsonl", "eval.jsonl")}
    newest = max(p for p in (run / "checkpoints").iterdir() if p.name[0].isdigit())
    return found | {name: (newest / name).read_bytes() for name in FILES}


BANDIT = {"evaluation.episodes": 2, "evaluation.max_steps": 20}


class OneStep(gymnasium.Env[Any, Any]):
    """A bandit: every episode has one step."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), float(action), True, False, {}


def bandit(num_envs: int, seed: int, name: str = "") -> Any:
    return SyncVectorEnv([OneStep] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def change_state(run: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change state.json of every checkpoint, and its hash in the manifest."""
    for place in (run / "checkpoints").glob("0*"):
        data = json.dumps(change(json.loads((place / "state.json").read_bytes()))).encode()
        (place / "state.json").write_bytes(data)
        about = json.loads((place / "manifest.json").read_bytes())
        about["files"]["state.json"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (place / "manifest.json").write_bytes(sealed(about))


def stopping(run: Path, after: Callable[[], int], **more: Any) -> list[str]:
    """Resume a run again and again, each time stopping it after so many steps; where it stood each time."""
    places = []
    while True:
        directory = RunDirectory(run)
        trainer = Trainer(from_json(directory.read_config()), directory, **more)
        directory.lock.acquire()
        try:
            trainer.restore()
            left = after()

            def tick(trainer: Trainer = trainer) -> None:
                nonlocal left
                left -= 1
                if left <= 0:
                    trainer.signals.asked = "SIGTERM"

            trainer.observer.progress = lambda phase, steps, tick=tick: tick()  # type: ignore[method-assign]
            try:
                trainer.run()
                return places
            except Stopped:
                at = trainer.algorithm.cursor
                places.append(f"{trainer._phase()} {at.line}.{at.epoch}.{at.minibatch}")
        finally:
            directory.lock.release()


# ten levels of bossfight, whose episodes end soon: all are scored after two rollouts and replayed from then on
REPLAY = {"levels.sampler": "prioritised", "levels.seeds": "2,7,11,17,36,43,47,5,23,30"}
ARMS = {"augment": "ucb", "drac.c": 5}  # a bandit that tries another arm after each rollout
MEASURED = {"analyse": "stiffness,ood-actions", "analyse_every": 3, "machine.chunk": 32}
# phases of one, three and then two rollouts, and stacks of three frames
STACKED = {"env.frame_stack": 3, "algorithm.N_pi_first": "1,3", "algorithm.segments": 1}
IMPOOLA, BF16 = {"network.encoder": "impoola"}, {"machine.precision": "bf16"}
CASES = {
    "ddcpg, both": REPLAY | ARMS, "ddcpg, measured": MEASURED, "dcpg, impoola": IMPOOLA, "dcpg, bf16": BF16,
    "ppg+ar, impoola in bf16": IMPOOLA | BF16, "ddcpg, stacked": STACKED,
}  # fmt: skip
MORE = {"plr": REPLAY, "ucb-drac": ARMS, **CASES}


@pytest.mark.filterwarnings("ignore:This device has no instructions for bfloat16")
@pytest.mark.parametrize("case", each([*METHODS, *CASES]))
def test_stopped_anywhere_and_resumed_equals_undisturbed(case: str, tmp_path: Path) -> None:
    name, more = case.split(",", maxsplit=1)[0], TINY | MORE.get(case, {})
    game, steps = ("bossfight", 768) if more.keys() & {"levels.seeds", "env.frame_stack"} else ("starpilot", 512)
    dcpg.train(name, game=game, preset="tiny", steps=steps, seed=1, out=tmp_path / "whole", settings=more)
    rows = read_rows(tmp_path / "whole" / "metrics.jsonl")
    if "levels.seeds" in more:  # levels are replayed in the last rollouts
        assert [row["levels_scored"] for row in rows[-3:]] == [10] * 3
        assert sum(len(row["episode_levels"]) for row in rows[-3:]) > 3
    if "augment" in more:
        assert len({row["augmentation"] for row in rows}) > 3
    if "env.frame_stack" in more:
        assert [any(column.startswith("auxiliary") for column in row) for row in rows] == [1, 0, 0, 1, 0, 1]
    if "analyse" in more:
        assert [{"stiffness", "ood_actions"} <= set(row) for row in rows] == [True, False, False, True]
    config = resolve(name, game, preset="tiny", steps=steps, seed=1, settings=more)
    part = tmp_path / "part"
    directory = RunDirectory(part)
    directory.prepare()
    directory.create()
    trainer = Trainer(config, directory)
    directory.write_json(directory.config, trainer.config.to_json())
    trainer.save()
    rng = random.Random(7)
    places = stopping(part, lambda: rng.choice([9, 29, 47, 90]))
    assert contents(part) == contents(tmp_path / "whole")
    kinds = {p.split()[0] for p in places}
    assert kinds >= {"collect", "policy"}
    last = read_rows(part / "eval.jsonl")[-1]
    again = dcpg.evaluate(part, levels="test")
    assert again["returns"] == last["test_returns"]
    assert again["predicted_value"] == last["test_predicted_value"]
    if config.declared().auxiliary_phase:
        assert any(p.startswith("auxiliary") and not p.endswith(".0.0") for p in places), places


def test_one_seed_is_identical_and_two_seeds_are_not(tmp_path: Path) -> None:
    for out, seed in (("a", 5), ("b", 5), ("c", 6)):
        dcpg.train("dcpg", game="coinrun", preset="tiny", steps=256, seed=seed, out=tmp_path / out, settings=TINY)
    a, b, c = (contents(tmp_path / x) for x in "abc")
    assert a == b
    assert a["weights.safetensors"] != c["weights.safetensors"]
    assert a["metrics.jsonl"] != c["metrics.jsonl"]


@pytest.mark.faults
def test_extending_a_finished_run_equals_a_longer_one(tmp_path: Path) -> None:
    for steps in (512, 896):
        dcpg.train("dcpg", game="starpilot", preset="tiny", steps=steps, out=tmp_path / str(steps), settings=TINY)
    assert len(read_rows(tmp_path / "512" / "eval.jsonl")) == 3  # rollouts 1, 3 and the last, 4
    dcpg.resume(tmp_path / "512", steps=896)
    assert contents(tmp_path / "512") == contents(tmp_path / "896")
    assert json.loads((tmp_path / "512" / "config.json").read_text())["steps"] == 896


@pytest.mark.faults
@pytest.mark.parametrize("name", ["ppo", "dcpg"])
def test_an_extended_run_that_is_killed_goes_on_from_where_it_was(name: str, tmp_path: Path) -> None:
    """Extending drops the final evaluation, which a longer run does not have; the checkpoint stays good."""
    for steps in (512, 896):
        dcpg.train(name, game="maze", preset="tiny", steps=steps, out=tmp_path / str(steps), settings=TINY)

    directory = RunDirectory(tmp_path / "512")
    plain = directory.read_config() | {"steps": 896}
    directory.write_json(directory.config, plain)
    trainer = Trainer(from_json(plain), directory)
    trainer.restore()  # and then the process is killed
    warnings: list[str] = []
    directory = RunDirectory(tmp_path / "512")
    trainer = Trainer(from_json(plain), directory)
    trainer.observer.warn = warnings.append  # type: ignore[method-assign]
    trainer.restore()
    assert trainer.algorithm.cursor.rollout == 4
    assert warnings == []
    trainer.run()
    assert contents(tmp_path / "512") == contents(tmp_path / "896")


def test_resuming_a_finished_run_changes_nothing_and_less_is_refused(tmp_path: Path) -> None:
    run = dcpg.train("ppo", game="maze", preset="tiny", steps=384, out=tmp_path / "run", settings=TINY)
    before = contents(run.directory)
    again = dcpg.resume(run)
    assert contents(run.directory) == before
    assert again.summary == run.summary
    with pytest.raises(BadInput, match="has made 384 steps already"):
        dcpg.resume(run, steps=128)


@pytest.mark.parametrize("name", ["ppo", "dcpg"])
def test_a_run_cannot_end_at_steps_behind_which_it_has_learnt_already(name: str, tmp_path: Path) -> None:
    """Stopped in the third rollout's updates, its weights are not those of two rollouts."""

    class InTheThird(dcpg.Observer):
        steps = 0

        def evaluation(self, row: Any) -> None:
            self.steps = row.steps

        def progress(self, phase: str, place: str) -> None:
            if self.steps == 256 and phase == "policy":
                os.kill(os.getpid(), signal.SIGTERM)

    settings = {**TINY, "evaluation.every": 1}
    with pytest.raises(Stopped):
        dcpg.train(
            name, game="maze", preset="tiny", steps=640, out=tmp_path / "run", settings=settings, observer=InTheThird()
        )
    (newest, *_) = sorted((tmp_path / "run" / "checkpoints").glob("0*"), reverse=True)
    assert newest.name.startswith("000000000256-01.")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and "tb" not in p.parts}
    with pytest.raises(BadInput, match="has made 256 steps already, and learns from more; ask for more"):
        dcpg.resume(tmp_path / "run", steps=256)
    kept = {p: p.read_bytes() for p in before if p.exists()}
    assert {p.name for p in before if kept.get(p) != before[p]} <= {"lock"}
    assert dcpg.resume(tmp_path / "run", steps=384).summary["status"] == "finished"
    dcpg.train(name, game="maze", preset="tiny", steps=384, out=tmp_path / "straight", settings=settings)
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")


def test_evaluating_a_finished_run_repeats_its_last_row(tmp_path: Path) -> None:
    run = dcpg.train("ddcpg", game="starpilot", preset="tiny", steps=384, out=tmp_path / "run", settings=TINY)
    last = read_rows(run.directory / "eval.jsonl")[-1]
    for split in ("train", "test"):
        again = dcpg.evaluate(run, levels=split)
        assert again["returns"] == last[f"{split}_returns"]
        assert again["level_seeds"] == last[f"{split}_levels"]
        for name in ("predicted_value", "true_value", "true_value_own_gamma"):
            assert again[name] == last[f"{split}_{name}"]
    for episodes in (-3, 0, 2.5, 5000):  # environments for -3 episodes would end the process
        with pytest.raises(BadInput, match="Give episodes= a whole number from 1 to 4,096, not "):
            dcpg.evaluate(run, levels="test", episodes=episodes)  # type: ignore[arg-type]
    greedy = dcpg.evaluate(run, levels="7-11", greedy=True)
    assert greedy["level_seeds"] == [7, 8, 9, 10, 11]
    assert greedy == dcpg.evaluate(run, levels="7-11", greedy=True)


@pytest.mark.parametrize("short", [256, 384])  # where the longer run has no evaluation, and where it has one
def test_the_evaluation_at_the_end_may_have_more_episodes(short: int, tmp_path: Path) -> None:
    """A run that is made longer has it at its new end, as if it had been that long from the start."""
    settings = {**TINY, "evaluation.last_episodes": 5}
    runs = [
        dcpg.train("ppo", game="maze", preset="tiny", steps=n, out=tmp_path / str(n), settings=settings)
        for n in (short, 512)
    ]
    before = read_rows(runs[0].directory / "eval.jsonl")
    assert [(row["steps"], len(row["train_returns"])) for row in before] == [(128, 3), (short, 5)]
    dcpg.resume(runs[0], steps=512)
    rows, straight = (read_rows(run.directory / "eval.jsonl") for run in runs)
    assert [(row["steps"], len(row["train_returns"]), len(row["test_returns"])) for row in rows] == [
        (128, 3, 3), (384, 3, 3), (512, 5, 5),
    ]  # fmt: skip
    assert rows == straight
    assert dcpg.evaluate(runs[0])["returns"] == rows[-1]["test_returns"]
    assert read_run(runs[0].directory)[1] == []


def test_a_run_that_is_ended_at_an_evaluation_plays_it_with_all_episodes(tmp_path: Path) -> None:
    class AtThird(dcpg.Observer):
        def evaluation(self, row: Any) -> None:
            if row.steps == 384:
                os.kill(os.getpid(), signal.SIGTERM)

    settings = {**TINY, "evaluation.last_episodes": 5}
    with pytest.raises(Stopped):
        dcpg.train(
            "ppo", game="maze", preset="tiny", steps=512, out=tmp_path / "run", settings=settings, observer=AtThird()
        )
    run = dcpg.resume(tmp_path / "run", steps=384)
    rows = read_rows(run.directory / "eval.jsonl")
    assert [(row["steps"], len(row["train_returns"])) for row in rows] == [(128, 3), (384, 5)]
    assert dcpg.evaluate(run)["returns"] == rows[-1]["test_returns"]


def test_milestones_hold_the_weights_of_their_time(tmp_path: Path) -> None:
    settings = {**TINY, "keep_every": 256}
    long = dcpg.train("dcpg", game="maze", preset="tiny", steps=768, out=tmp_path / "long", settings=settings)
    short = dcpg.train("dcpg", game="maze", preset="tiny", steps=256, out=tmp_path / "short", settings=TINY)
    found = sorted(p.name for p in (long.directory / "milestones").glob("*.safetensors"))
    assert found == [f"{n:012d}.safetensors" for n in (256, 512, 768)]
    weights = (long.directory / "milestones" / "000000000256.safetensors").read_bytes()
    assert weights == contents(short.directory)["weights.safetensors"]
    assert dcpg.evaluate(long, levels="0-3", at=256)["steps"] == 256
    assert dcpg.load(long, at=np.int64(256)).steps == 256  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"Give at= a whole number of steps, not 256\.0"):
        dcpg.load(long, at=256.0)  # type: ignore[arg-type]
    untrained = dcpg.load(long, at=0)
    start = RunDirectory(tmp_path / "start")
    start.prepare()
    start.create()
    fresh = Trainer(resolve("dcpg", "maze", preset="tiny", settings=TINY), start).network.state_dict()
    assert all(fresh[k].equal(v) for k, v in untrained.network.state_dict().items())
    with pytest.raises(BadInput, match="no weights at 300 steps; it has them at 0, 256, 512, 768"):
        dcpg.load(long, at=300)
    at_256, at_512 = (long.directory / "milestones" / f"{n:012d}.safetensors" for n in (256, 512))
    at_512.write_bytes(at_256.read_bytes())
    with pytest.raises(NoValidCheckpoint, match="do not have the hash"):
        dcpg.load(long, at=512)
    at_512.with_suffix(".json").write_bytes(at_256.with_suffix(".json").read_bytes())
    with pytest.raises(NoValidCheckpoint, match="it is of 256 steps"):
        dcpg.load(long, at=512)
    away = RunDirectory(long.directory).milestones / "000000000768.json"
    away.write_text(away.read_text().replace('"config": "', '"config": "0'))
    with pytest.raises(NoValidCheckpoint, match=r"at 768 steps of .* belongs to another run"):
        dcpg.load(long, at=768)
    config = long.directory / "config.json"
    config.write_text(config.read_text().replace('"mode": "easy"', '"mode": "hard"'))
    with pytest.raises(NoValidCheckpoint, match=r'env\.mode was "easy" and is "hard"\. Change it back'):
        dcpg.load(long, at=768)


def test_tensorboard_has_every_number_once_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = dcpg.train("ppo", game="maze", preset="tiny", steps=384, out=tmp_path / "run", settings=TINY)
    dcpg.resume(run, steps=640)
    events = EventAccumulator(str(run.directory / "tb"))
    events.Reload()
    for tag, file in (("training/policy.J_pi", "metrics.jsonl"), ("evaluation/test_return", "eval.jsonl")):
        rows = read_rows(run.directory / file)
        assert [e.step for e in events.Scalars(tag)] == [row["steps"] for row in rows], tag
        name = tag.split("/")[1]
        assert [e.value for e in events.Scalars(tag)] == pytest.approx([row[name] for row in rows])


def test_a_loaded_agent_acts_on_one_observation_or_a_batch(tmp_path: Path) -> None:
    import numpy as np

    run = dcpg.train("dcpg", game="maze", preset="tiny", steps=128, out=tmp_path / "run", settings=TINY)
    agent = dcpg.load(run)
    batch = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), np.uint8)
    actions = agent.act(batch)
    assert actions.shape == (6,)
    assert ((actions >= 0) & (actions < 15)).all()
    assert agent.act(batch[0]).shape == ()
    assert (agent.act(batch, greedy=True) == agent.act(batch, greedy=True)).all()
    assert dcpg.load(run).act(batch, greedy=True)[2] == agent.act(batch[2], greedy=True)
    with pytest.raises(BadInput, match="An observation has shape"):
        agent.act(batch[:, :5])
    with pytest.raises(BadInput, match="An observation has shape"):
        agent.act(batch[:0])
    for other in (batch.astype(np.float32), batch.astype(np.int64), batch.astype(str)):
        with pytest.raises(BadInput, match="An observation has the type uint8; got "):
            agent.act(other)
    # frames as Procgen gives them are brought to the size that the agent was trained on
    full = batch.repeat(4, 1).repeat(4, 2)
    assert (agent.act(full, greedy=True) == agent.act(batch, greedy=True)).all()


def test_init_starts_from_another_runs_weights(tmp_path: Path) -> None:
    first = dcpg.train("dcpg", game="maze", preset="tiny", steps=128, out=tmp_path / "a", settings=TINY)
    config = resolve("ddcpg", "maze", preset="tiny", steps=128, settings=TINY)
    with pytest.raises(BadInput, match="do not fit this run: the weights belong to another network"):
        start(config, tmp_path / "b", init=first.directory)
    assert not (tmp_path / "b").exists()
    same = resolve("dcpg", "leaper", preset="tiny", steps=128, settings=TINY | {"algorithm.learning_rate": 1e-12})
    start(same, tmp_path / "c", init=first.directory)
    from safetensors.torch import load

    a, b = (load(contents(r)["weights.safetensors"]) for r in (first.directory, tmp_path / "c"))
    assert all((a[k] - b[k]).abs().max() < 1e-6 for k in a)


def test_rows_say_what_they_must(tmp_path: Path) -> None:
    run = dcpg.train("ddcpg", game="starpilot", preset="tiny", steps=300, seed=2, out=tmp_path / "r", settings=TINY)
    assert run.summary["steps"] == 256
    assert run.summary["status"] == "finished"
    assert len(run.summary["test_returns"]) == 3
    rows = read_rows(run.directory / "metrics.jsonl")
    assert [row["steps"] for row in rows] == [128, 256]
    for key in ("policy.J_pi", "policy.C_V.scaled", "policy.gradient_norm", "policy.H"):
        assert key in rows[0]
    assert "auxiliary.J_f" not in rows[0]
    assert "auxiliary.J_f" in rows[1]
    assert rows[1]["policy.H.scaled"] == pytest.approx(-0.01 * rows[1]["policy.H"])
    config = json.loads((run.directory / "config.json").read_text())
    assert config["seed"] == 2
    assert config["versions"]["torch"]
    assert list((run.directory / "tb").glob("events*"))
    assert [row["steps"] for row in read_rows(run.directory / "timing.jsonl")] == [128, 256]
    names = sorted(p.name for p in (run.directory / "checkpoints").iterdir())
    assert all(name == "shared" or name[:12].isdigit() for name in names)


@pytest.mark.parametrize("last", [0, 5])  # with another number of episodes the last row may be played anew
def test_rows_that_were_changed_do_not_stop_a_resume_and_are_named_for_good(last: int, tmp_path: Path) -> None:
    """A report would refuse some of them; the run itself only counts them."""
    settings = {**TINY, "evaluation.last_episodes": last}
    run = dcpg.train("ppo", game="maze", preset="tiny", steps=384, out=tmp_path / "run", settings=settings)
    for name, change in (("metrics.jsonl", {"reward_variance": None}), ("eval.jsonl", {"train_return": 99.0})):
        rows = read_rows(run.directory / name)
        rows[0] |= change
        (run.directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "altered" not in run.summary
    again = dcpg.resume(run, steps=512)
    assert (again.summary["status"], again.summary["steps"]) == ("finished", 512)
    assert len(read_rows(run.directory / "metrics.jsonl")) == 4
    assert again.summary["altered"] == ["metrics.jsonl", "eval.jsonl"]
    # the next checkpoints stand on the changed rows, and still say so
    assert dcpg.resume(run, steps=640).summary["altered"] == ["metrics.jsonl", "eval.jsonl"]


@pytest.mark.parametrize("last", [0, 5])
def test_a_changed_last_evaluation_is_named_too(last: int, tmp_path: Path) -> None:
    settings = {**TINY, "evaluation.last_episodes": last}
    run = dcpg.train("ppo", game="maze", preset="tiny", steps=384, out=tmp_path / "run", settings=settings)
    rows = read_rows(run.directory / "eval.jsonl")
    rows[-1] |= {"train_return": 99.0}
    (run.directory / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert dcpg.resume(run).summary["altered"] == ["eval.jsonl"]


def test_a_checkpoint_without_a_hash_of_the_rows_still_resumes(tmp_path: Path) -> None:
    run = dcpg.train("ppo", game="maze", preset="tiny", steps=128, out=tmp_path / "run", settings=TINY)
    change_state(run.directory, lambda plain: {k: plain[k] for k in ("steps", "rows", "parts")})
    (run.directory / "metrics.jsonl").write_bytes((run.directory / "metrics.jsonl").read_bytes().replace(b"1", b"2"))
    summary = dcpg.resume(run, steps=256).summary
    assert (summary["steps"], "altered" in summary) == (256, False)


def test_a_rollout_may_have_more_episodes_than_a_file_has_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million episodes end in one rollout of a bandit; a state that could not be read again is not written."""
    options = {"preset": "tiny", "settings": BANDIT | {"env.num_envs": 16, "rollout_length": 64}}
    run = dcpg.train("ppo", env=bandit, name="bandit", steps=1024, out=tmp_path / "run", **options)  # type: ignore[arg-type]
    (row,) = read_rows(run.directory / "metrics.jsonl")
    assert len(row["episode_returns"]) == 1024
    assert (driver.newest(run.directory) / "state.json").read_bytes().count(b"[") < 100  # of lists
    assert dcpg.resume(run, env=bandit, steps=2048).summary["steps"] == 2048
    monkeypatch.setattr(state, "MOST_STATE", 5_000)
    with pytest.raises(BadInput, match="because of the episodes that ended in one rollout; lower rollout_length"):
        dcpg.train("ppo", env=bandit, name="bandit", steps=1024, out=tmp_path / "large", **options)  # type: ignore[arg-type]


def test_the_episodes_of_older_checkpoints_are_taken_over(tmp_path: Path) -> None:
    """Of schema 2, in which they were a list of three for each episode."""
    run = dcpg.train("ppo", game="bossfight", preset="tiny", steps=512, out=tmp_path / "run", settings=TINY)

    def older(plain: dict[str, Any]) -> dict[str, Any]:
        episodes = plain["parts"]["collector"]["episodes"]
        columns = [episodes.pop(f"episode_{name}") for name in ("returns", "lengths", "levels")]
        episodes["finished"] = [list(one) for one in zip(*columns, strict=True)]
        return plain

    other = shutil.copytree(run.directory, tmp_path / "other")
    change_state(other, older)
    for place in (other / "checkpoints").glob("0*"):
        about = json.loads((place / "manifest.json").read_bytes())
        (place / "manifest.json").write_text(json.dumps(about | {"schema": 2}))
    assert contents(dcpg.resume(run, steps=640).directory) == contents(dcpg.resume(other, steps=640).directory)


def test_an_evaluation_that_is_no_row_takes_no_memory_at_a_resume(tmp_path: Path) -> None:
    run = dcpg.train("ppo", game="maze", preset="tiny", steps=128, out=tmp_path / "run", settings=TINY)
    path = run.directory / "eval.jsonl"
    path.write_bytes(b"")
    os.truncate(path, 2**31)  # one line of zeros that takes no room
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert dcpg.resume(run, steps=256).summary["steps"] == 256
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # KiB
    assert [row["rollout"] for row in read_rows(path)][-1] == 2


def test_a_configuration_that_could_not_be_read_again_is_not_written_by_a_resume(tmp_path: Path) -> None:
    first, long = partial(bandit, name="a"), partial(bandit, name="a" * 2_100_000)
    run = dcpg.train("ppo", env=first, name="bandit", preset="tiny", steps=128, out=tmp_path / "run", settings=BANDIT)
    with pytest.raises(BadInput, match=r"configuration could not be read again: .*an id is no text of at most"):
        dcpg.resume(run, env=long, steps=256)
    assert dcpg.resume(run, env=first, steps=256).summary["steps"] == 256


def test_a_cursor_beyond_the_rows_is_damage_and_takes_no_time(tmp_path: Path) -> None:
    run = dcpg.train("ppo", game="maze", preset="tiny", steps=128, out=tmp_path / "run", settings=TINY)

    def far(plain: dict[str, Any]) -> dict[str, Any]:
        plain["parts"]["algorithm"]["cursor"]["rollout"] = plain["rows"]["metrics"] = 10**12
        return plain

    change_state(run.directory, far)
    with pytest.raises(NoValidCheckpoint, match=r"rows written before it are missing from metrics\.jsonl"):
        dcpg.resume(run, steps=256)


def test_a_configuration_whose_numbers_are_written_otherwise_is_the_same(tmp_path: Path) -> None:
    run = dcpg.train("ppo", game="maze", preset="tiny", steps=128, out=tmp_path / "run", settings=TINY)
    path = run.directory / "config.json"
    text = path.read_text()
    assert '"timeout": 300.0' in text
    path.write_text(text.replace('"timeout": 300.0', '"timeout": 300'))
    assert dcpg.resume(run, steps=256).summary["steps"] == 256


def test_a_checkpoint_of_another_run_is_nobody_elses(tmp_path: Path) -> None:
    """Whatever reads weights says so and takes the one before; an export is refused."""
    options = {"preset": "tiny", "steps": 256, "settings": TINY, "progress": False}
    run, other = (
        dcpg.train("ppo", game="maze", seed=seed, out=tmp_path / f"{seed}", **options)  # type: ignore[arg-type]
        for seed in (0, 1)
    )
    ours, theirs = (driver.newest(one.directory) for one in (run, other))
    assert ours.name == theirs.name
    shutil.rmtree(ours)
    shutil.copytree(theirs, ours)
    before = {name: value.clone() for name, value in dcpg.load(other).network.state_dict().items()}
    with pytest.warns(Notice, match="belongs to another method or configuration"):
        agent = dcpg.load(run)
    assert agent.steps < 256
    assert not all(value.equal(before[name]) for name, value in agent.network.state_dict().items())
    with pytest.warns(Notice), pytest.raises(NoValidCheckpoint, match="belongs to another"):
        dcpg.export(run)
    for name in driver.names(run.directory)[:-1]:
        shutil.rmtree(run.directory / "checkpoints" / name)
    for use in (dcpg.load, dcpg.evaluate, dcpg.export):
        with pytest.raises(NoValidCheckpoint, match="seed was 1 and is 0"):
            use(run)
    with pytest.raises(NoValidCheckpoint, match="seed was 1 and is 0"):
        dcpg.train("ppo", game="maze", init=run.directory, out=tmp_path / "new", **options)  # type: ignore[arg-type]


def test_settings_that_were_changed_by_hand_are_named(tmp_path: Path) -> None:
    settings = {**TINY, "levels.seeds": ",".join(map(str, range(300)))}
    run = dcpg.train("ppo", game="maze", preset="tiny", steps=128, out=tmp_path / "run", settings=settings)
    path = run.directory / "config.json"
    text = path.read_text()
    changed = json.loads(text)
    changed["algorithm"]["gamma"], changed["seed"], changed["keep_every"] = 0.9, 7, 128
    path.write_text(json.dumps(changed))
    with pytest.raises(NoValidCheckpoint) as refused:
        dcpg.resume(run, steps=384)
    assert str(refused.value) == (
        f"{path} is not what the checkpoints were made with: seed was 0 and is 7; algorithm.gamma was 0.999 and is "
        "0.9. Change it back to go on, or start a new run with the new values."
    )
    changed = json.loads(text)
    changed["levels"]["seeds"][299] = 1000
    path.write_text(json.dumps(changed))
    with pytest.raises(NoValidCheckpoint, match=r"levels.seeds was \"a list with the hash \w{12}\" and is"):
        dcpg.resume(run, steps=384)
    changed["levels"]["seeds"] = [1, 2]
    for manifest in (run.directory / "checkpoints").glob("*/manifest.json"):  # as older releases wrote them
        plain = json.loads(manifest.read_text())
        assert plain["settings"]["algorithm.gamma"] == 0.999
        del plain["settings"]
        manifest.write_bytes(sealed(plain))
    path.write_text(json.dumps(changed))
    with pytest.raises(NoValidCheckpoint, match="another method or configuration"):
        dcpg.resume(run, steps=384)
    path.write_text(text)
    assert dcpg.resume(run, steps=256).summary["steps"] == 256


def test_the_lock_beats_while_a_checkpoint_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    dcpg.train("ppo", "coinrun", preset="tiny", steps=128, out=run, settings=TINY, progress=False)
    beats: list[int] = []

    def slowly(trainer: Trainer) -> None:
        lock, end = trainer.directory.lock, time.monotonic() + 20
        before = lock.counter
        while lock.counter == before and time.monotonic() < end:
            time.sleep(0.05)
        beats.append(lock.counter - before)
        restore(trainer)

    restore = Trainer.restore
    monkeypatch.setattr(Trainer, "restore", slowly)
    dcpg.resume(run, progress=False)
    assert beats[0] >= 1
