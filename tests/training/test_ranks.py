"""One run on several processes: it computes what one process with as many shards computes.

Those that start processes are marked as the longer tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dcpg
from dcpg.config.build import make_train, train_levels
from dcpg.config.resolve import resolve
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.ranks import Group, Ranks, groups
from dcpg.storage.rows import read_rows
from tests.faults.driver import names

COMPARED = ("ppo", "ppg", "dcpg", "ddcpg")
# two phases; a group's minibatch goes through the encoder in parts, so sums are made in another order on ranks
SETTINGS = {
    "env.num_envs": 8, "env.frame_size": 16, "network.channels": "2,4", "evaluation.episodes": 2, "machine.chunk": 7,
    "evaluation.max_steps": 12, "evaluation.every": 4,
}  # fmt: skip
STEPS = 512

SCRIPT = """
import atexit, json, os, sys
def at_the_end():  # registered first, so it runs last
    threads = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
    with open(f"{sys.argv[1]}/threads-{os.environ['RANK']}.json", "w") as file:
        json.dump(threads, file)
atexit.register(at_the_end)
import dcpg
from dcpg.errors import BadInput, StorageFailed
from dcpg.ranks import Ranks
import torch
out, settings, steps, methods = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",")
for name in methods:
    more = {"algorithm.E_aux": 2} if name != "ppo" else {}
    dcpg.train(name, "starpilot", preset="tiny", steps=steps, seed=1, out=f"{out}/{name}", settings=settings | more)
ranks = Ranks.join(torch.device("cpu"))
said = open(f"{out}/said-{ranks.rank}.jsonl", "w")
for kind, error in (("disk", OSError(28, "no room")), ("storage", StorageFailed("no room"))):
    def fails(error=error):
        if ranks.rank == 1:
            raise error
        return 1
    try:
        ranks.together(fails)
        caught = "nothing"
    except Exception as raised:
        caught = f"{type(raised).__name__}: {raised}"
    print(json.dumps([kind, ranks.rank, caught]), file=said)
values = ranks.together(lambda: {"rank": ranks.rank, "text": "x" * (5 * ranks.rank)})
print(json.dumps(["values", ranks.rank, values]), file=said)
print(json.dumps(["any", ranks.rank, ranks.any(ranks.rank == 1, False)]), file=said)
print(json.dumps(["total", ranks.rank, ranks.total(torch.tensor([1.0, ranks.rank])).tolist()]), file=said)
grid = torch.tensor([[1, 2], [3, 4]]) + 10 * ranks.rank
columns = [ranks.columns(grid).tolist(), ranks.columns(grid % 2 == 0).tolist()]
print(json.dumps(["columns", ranks.rank, *columns]), file=said)
said.close()
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The runs of all compared methods on two processes, one after another, and what the processes said."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "script.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += [str(folder / "script.py"), str(folder), json.dumps(SETTINGS), str(STEPS), ",".join(COMPARED)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder, [
        json.loads(line) for rank in (0, 1) for line in (folder / f"said-{rank}.jsonl").read_text().splitlines()
    ]


def numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, float)}


@pytest.mark.faults
@pytest.mark.parametrize("name", COMPARED)
def test_two_ranks_compute_what_one_process_with_two_shards_computes(
    name: str, two_ranks: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    more = {"algorithm.E_aux": 2} if name != "ppo" else {}
    runs = {}
    for shards in (1, 2):
        out = tmp_path / str(shards)
        settings = {**SETTINGS, **more, "shards": shards}
        dcpg.train(name, "starpilot", preset="tiny", steps=STEPS, seed=1, out=out, settings=settings)
        runs[shards] = out
    ours, whole, other = two_ranks[0] / name, runs[2], runs[1]
    rows, expected, without = (read_rows(run / "metrics.jsonl") for run in (ours, whole, other))
    assert len(rows) == len(expected) == STEPS // 128
    for row, wanted in zip(rows, expected, strict=True):
        assert row["episode_returns"] == wanted["episode_returns"]
        assert row["episode_levels"] == wanted["episode_levels"]
        assert row["reward_variance"] == wanted["reward_variance"]
        for term, value in numbers(wanted).items():
            assert row[term] == pytest.approx(value, rel=2e-3, abs=2e-5), term
    # the shards do matter: without them the first update is another one, by far more than rounding
    assert abs(without[0]["policy.gradient_norm"] / expected[0]["policy.gradient_norm"] - 1) > 1e-3
    weights, wanted_weights, others = (
        load_file(run / "checkpoints" / names(run)[-1] / "weights.safetensors") for run in (ours, whole, other)
    )
    moved = max(float((weights[k] - others[k]).abs().max()) for k in weights)
    for key, tensor in wanted_weights.items():
        torch.testing.assert_close(weights[key], tensor, rtol=1e-3, atol=2e-5)
        assert float((weights[key] - tensor).abs().max()) < moved / 20


@pytest.mark.faults
def test_ranks_agree_gather_and_raise_together(two_ranks: tuple[Path, list[Any]]) -> None:
    said = {(line[0], line[1]): line[2:] for line in two_ranks[1]}
    for rank in (0, 1):
        assert said["disk", rank] == ["OSError: [Errno 28] no room"]
        assert said["storage", rank] == ["StorageFailed: no room"]
        assert said["values", rank] == [[{"rank": 0, "text": ""}, {"rank": 1, "text": "xxxxx"}]]
        assert said["any", rank] == [[True, False]]
        assert said["total", rank] == [[2.0, 1.0]]
        assert said["columns", rank] == [
            [[1, 2, 11, 12], [3, 4, 13, 14]],
            [[False, True, False, True], [False, True, False, True]],
        ]


@pytest.mark.faults
def test_ranks_end_the_threads_of_their_group_before_python_ends(two_ranks: tuple[Path, list[Any]]) -> None:
    for rank in (0, 1):
        threads = json.loads((two_ranks[0] / f"threads-{rank}.json").read_text())
        assert threads
        assert not [name for name in threads if "gloo" in name]


@pytest.mark.faults
def test_each_rank_leaves_its_own_environments_and_the_first_the_rest(two_ranks: tuple[Path, list[Any]]) -> None:
    run = two_ranks[0] / "ddcpg"
    newest = run / "checkpoints" / names(run)[-1]
    assert {p.name for p in newest.iterdir()} == {
        "manifest.json", "weights.safetensors", "adam.safetensors", "state.json", "collector.rank0.zst",
        "collector.rank1.zst",
    }  # fmt: skip
    assert json.loads((newest / "manifest.json").read_bytes())["processes"] == 2
    assert dcpg.evaluate(run, levels="test")["returns"] == read_rows(run / "eval.jsonl")[-1]["test_returns"]
    with pytest.raises(BadInput, match=r"made by 2 processes.*torchrun --nproc-per-node 2 -m dcpg resume"):
        dcpg.resume(run, steps=2 * STEPS)


@pytest.mark.parametrize("settings", [{}, {"levels.seeds": "3,4,5,6,7"}])
@pytest.mark.parametrize("size", [2, 4])
def test_the_environments_of_ranks_are_slices_of_the_whole(size: int, settings: dict[str, str]) -> None:
    config = resolve("ppo", "bossfight", preset="tiny", settings={**settings, "shards": size})
    whole = make_train(config, None, train_levels(config))
    parts = [make_train(config, None, train_levels(config, r), r) for r in (Ranks(i, size) for i in range(size))]
    rng, episodes = np.random.default_rng(0), 0
    for _ in range(300):
        frames, levels = whole.observe()
        seen = [part.observe() for part in parts]
        np.testing.assert_array_equal(frames, np.concatenate([f for f, _ in seen]))
        np.testing.assert_array_equal(levels, np.concatenate([s for _, s in seen]))
        actions = rng.integers(15, size=8)
        step = whole.step(actions)
        steps = [part.step(actions[Ranks(i, size).slice(8)]) for i, part in enumerate(parts)]
        np.testing.assert_array_equal(step.rewards, np.concatenate([s.rewards for s in steps]))
        np.testing.assert_array_equal(step.dones, np.concatenate([s.dones for s in steps]))
        episodes += int(step.dones.sum())
    assert episodes > 8
    for env in (whole, *parts):
        env.close()


def test_groups() -> None:
    assert groups(1, 8, Ranks()) == (Group((), range(8)),)
    assert groups(2, 8, Ranks()) == (Group((0,), range(4)), Group((1,), range(4, 8)))
    assert groups(4, 8, Ranks(2, 4)) == (Group((2,), range(2)),)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shards": 3}, "must be one of 1, 2, 4"),
        ({"shards": 2, "env.num_envs": 9, "algorithm.segments": 2, "algorithm.minibatches": 1}, "env.num_envs=9"),
        ({"shards": 4, "algorithm.segments": 2}, "algorithm.segments=2"),
        ({"shards": 4, "algorithm.minibatches": 64}, "a minibatch's transitions"),
    ],
)
def test_shards_that_do_not_divide_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        resolve("dcpg", "starpilot", preset="tiny", settings=settings)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("plr", {}, "levels.sampler=prioritised needs the whole rollout in one process"),
        ("ppg", {"analyse": "stiffness"}, "analyse needs the whole rollout"),
        ("ppg", {"shards": 1}, "shards=1, but torchrun started 2 processes"),
    ],
)
def test_what_ranks_cannot_do_is_refused(
    name: str, settings: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(BadInput, match=words):
        dcpg.train(name, "starpilot", preset="tiny", out=tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()


def test_torchrun_decides_shards_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    config = resolve("dcpg", "starpilot")
    assert (config.shards, config.machine.threads) == (4, 1)
    assert set(METHODS) >= set(COMPARED)


LISTED = """
import sys, dcpg
out = sys.argv[1]
settings = {
    "env.num_envs": 4, "env.frame_size": 16, "network.channels": "2,4", "evaluation.episodes": 1,
    "evaluation.max_steps": 4, "evaluation.every": 100, "levels.seeds": "3,4,5,6,7,8,9",
}
run = dict(preset="tiny", seed=1, settings=settings)
dcpg.train("ppo", "bossfight", steps=64 * 24, out=f"{out}/whole", **run)
dcpg.train("ppo", "bossfight", steps=64 * 12, out=f"{out}/resumed", **run)
dcpg.resume(f"{out}/resumed", steps=64 * 24)
"""


@pytest.mark.faults
def test_each_rank_goes_on_with_its_own_levels(tmp_path: Path) -> None:
    """The environments of each rank have drawn different numbers of levels when the run is resumed."""
    (tmp_path / "script.py").write_text(LISTED)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += [str(tmp_path / "script.py"), str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    whole, resumed = (tmp_path / name / "metrics.jsonl" for name in ("whole", "resumed"))
    assert whole.read_bytes() == resumed.read_bytes()
    assert sum(len(row["episode_levels"]) for row in read_rows(whole)[:12]) > 3
