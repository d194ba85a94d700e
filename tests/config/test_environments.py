"""Environments of the user's own: what is accepted, refused, named, recorded and asked for again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import dcpg
from dcpg.config.environments import Environment, find, maker_for
from dcpg.config.identity import identity
from dcpg.config.schema import OWN
from dcpg.config.written import parse_written, read_written, to_write
from dcpg.envs.base import Spaces
from dcpg.errors import BadInput, Stopped
from dcpg.methods.plugins import sha256_of
from dcpg.runs.collection import read
from dcpg.runs.records import read_run
from dcpg.storage.rundir import RunDirectory
from dcpg.training.evaluations import Evaluations
from tests.cli.test_cli import run as command
from tests.synthetic import configuration
from tests.training.test_learning import Signpost, make, make_test

QUICK = {"evaluation.episodes": 2, "evaluation.max_steps": 20, "network.channels": "4,8"}
SPACES = {"shape": [4], "dtype": "uint8", "actions": 2, "frame": [4], "first_action": 0, "stack": 1}
FILE = """
import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.training.test_learning import Signpost

def make(num_envs, seed, render_mode=None):
    return SyncVectorEnv([lambda: Signpost(0, {count})] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

def make_test(num_envs, seed):
    return SyncVectorEnv([lambda: Signpost(1000, 50)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

def narrow(num_envs, seed):
    return SyncVectorEnv([lambda: Signpost(0, 5, channels=1)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

number = 3

def broken(num_envs, seed):
    raise RuntimeError("no")

class Unstable(Signpost):
    def reset(self, **options):
        raise RuntimeError("not now")

def unstable(num_envs, seed):
    return SyncVectorEnv([lambda: Unstable(0, 5)] * num_envs)
"""


def wrong_size(n: int, seed: int) -> VectorEnv:
    return make(4, seed)


def single(n: int, seed: int) -> Any:
    return Signpost(0, 5)


def nothing(n: int, seed: int) -> Any:
    return 7


def one_argument(n: int) -> VectorEnv:
    return make(n, 0)


def grey(n: int, seed: int) -> VectorEnv:
    return SyncVectorEnv([lambda: Signpost(0, 5, channels=1)] * n, autoreset_mode=AutoresetMode.SAME_STEP)


def continuous(n: int, seed: int) -> VectorEnv:
    class Push(Signpost):
        def __init__(self) -> None:
            super().__init__(0, 5)
            self.action_space = gymnasium.spaces.Box(-1, 1, (2,))  # type: ignore[assignment]

    return SyncVectorEnv([Push] * n)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, count in (("one", 20), ("two", 30)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "signpost.py").write_text(FILE.format(count=count))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"env": "Signpost"}, "Unknown Gymnasium environment 'Signpost'"),
        ({"env": "signpost.py"}, r"Name the function in signpost\.py too, such as signpost\.py:make"),
        ({"env": "none.py:make"}, r"There is no file none\.py with an environment"),
        ({"env": "one/signpost.py:mak"}, r"has no function 'mak'; it has make, make_test, narrow"),
        ({"env": "one/signpost.py:number"}, "has no function 'number'"),
        ({"env": "no_such_module:make"}, "no_such_module cannot be loaded: ModuleNotFoundError"),
        ({"env": make(2, 0)}, r"env is an environment that exists already; give a function \(num_envs, seed\)"),
        ({"env": Signpost(0, 5)}, "env is an environment that exists already"),
        ({"env": Signpost}, "env is the class of a single environment"),
        ({"env": 7}, "env must be a function .* got int"),
        ({"env": one_argument}, r"env must take \(num_envs, seed\); one_argument takes \(n: 'int'\)"),
        ({"env": wrong_size}, r"env\(8, seed\) returned 4 environments instead of 8"),
        ({"env": single}, r"returned a single environment; return gymnasium\.vector\.SyncVectorEnv"),
        ({"env": nothing}, "must return a Gymnasium vector environment; got int"),
        ({"env": continuous}, "Actions must be Discrete"),
        ({"env": make, "test_env": grey}, r"The training levels have observations uint8 \(16, 16, 3\) and 4 actions; "
         r".*grey has observations uint8 \(16, 16, 1\) and 4 actions"),
        ({"env": make, "test_env": wrong_size}, r"test_env\(2, seed\) returned 4 environments instead of 2"),
        ({"env": make, "test_env": "CartPol-v1"}, "did you mean 'CartPole-v1'"),
        ({"env": "one/signpost.py:broken"}, r"py:broken cannot be made: RuntimeError: no \(signpost\.py, line 18\)"),
        ({"env": "one/signpost.py:unstable"}, r"signpost\.py:unstable cannot be reset: RuntimeError: not now"),
        ({"env": "one/signpost.py:Signpost"}, "is the class of a single environment"),
        ({"env": ":make"}, r"got ':make'"),
        ({"test_env": make}, "Give either game="),
        ({"game": "maze", "test_env": make}, "test_env= goes with env="),
        ({"game": "maze", "name": "x"}, "name= goes with env="),
        ({"env": make, "name": "../x"}, "an environment's name has letters"),
        ({"game": "CartPole-v1"}, r'CartPole-v1 is none of Procgen\'s games; .*env="CartPole-v1"'),
        ({"env": make, "game": "maze"}, "Give either game="),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing_behind(options: dict[str, Any], expected: str, folder: Path) -> None:
    with pytest.raises(BadInput, match=expected) as caught:
        dcpg.train("ppo", preset="tiny", steps=256, settings=QUICK, out=folder / "run", **options)
    assert "\n" not in str(caught.value)
    assert not (folder / "run").exists()
    assert not (folder / "runs").exists()


def test_commands_refuse_in_their_own_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ("train", "ppo", "--preset", "tiny")
    for words, expected in (
        ((*tiny, "--game", "CartPole-v1"), "--env CartPole-v1"),
        ((*tiny, "--game", "maze", "--test-env", "CartPole-v1"), "--test-env goes with --env"),
        (tiny, "Give either --game (Procgen) or --env"),
        ((*tiny, "--env", "one/signpost.py:make", "--test-env", "one/signpost.py:narrow"), "The training levels have"),
        ((*tiny, "--env", "CartPole-v1", "--name", "a/b"), "--name is 'a/b'"),
        ((*tiny, "--env", "CartPole-v1", "--set", "levels.sampler=prioritised"), "which only Procgen allows"),
    ):
        code, out, error = command(capsys, *words)
        assert (code, error.count("\n"), expected in error) == (2, 1, True), (words, error)
        assert "Traceback" not in out + error
    assert sorted(path.name for path in folder.iterdir()) == ["one", "two"]


def test_files_functions_and_modules_have_one_identity(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_file, from_python = find("one/signpost.py:make"), find(make)
    assert (from_file.name, from_file.id) == ("signpost.make", f"{folder}/one/signpost.py:make")
    assert from_file.given == ("one/signpost.py:make", None)
    assert from_python.name == "test_learning.make"
    assert from_python.id.endswith("tests/training/test_learning.py:make")
    assert find("tests.training.test_learning:make").id == from_python.id
    monkeypatch.chdir(folder / "one")
    assert find("signpost:make").id == from_file.id
    assert find("CartPole-v1").id == find("CartPole-v1").name == "CartPole-v1"
    assert find("gymnasium:CartPole-v1").id == "gymnasium:CartPole-v1"  # must be typed again, as any module
    assert find(partial(make)).id == f"{from_python.id}()"


def test_two_lambdas_and_two_closures_never_share_a_name() -> None:
    def factory(count: int) -> Callable[[int, int], VectorEnv]:
        def made(n: int, seed: int) -> VectorEnv:
            return SyncVectorEnv([lambda: Signpost(0, count)] * n)

        return made

    lambdas = [lambda n, s: make(n, s + 0), lambda n, s: make_test(n, s + 0), lambda n, s: make(n, s + 0)]
    lambdas += [lambda n, seed, k=k: make(n + 0 * k, seed) for k in range(3)]
    names = [identity(one)[0] for one in lambdas]
    assert len(set(names)) == len(names)
    assert all(name.startswith("test_environments.lambda-") for name in names)
    assert [identity(one)[0] for one in lambdas] == names  # and keep theirs
    assert len({identity(factory(k))[1] for k in range(3)}) == 3
    assert identity(factory(1)) == identity(factory(1))
    assert identity(partial(make, 3))[1] != identity(partial(make, 4))[1]

    class Maker:
        def __init__(self, sizes: np.ndarray) -> None:
            self.sizes, self.inner = sizes, [object()]

        def __call__(self, n: int, seed: int) -> VectorEnv:
            return make(n, seed)

        def made(self, n: int, seed: int) -> VectorEnv:
            return make(n, seed)

    one, two, again = Maker(np.arange(5000)), Maker(np.arange(5000) + (np.arange(5000) == 2500)), Maker(np.arange(5000))
    assert identity(one) == identity(again)  # of equal objects
    assert len({identity(lambda n, s, *, size=size: make(n, s + 0 * size))[1] for size in range(3)}) == 3

    def itself(n: int, seed: int) -> Any:
        return itself if n > 99 else make(n, seed)

    class Mute:
        def __repr__(self) -> str:
            raise RuntimeError

    mute = Mute()
    assert identity(itself) == identity(itself)
    assert identity(lambda n, s: (mute, make(n, s)))[0].startswith("test_environments.lambda-")
    notebooks = []
    for size in (5, 9):  # as Jupyter compiles a cell
        cell: dict[str, Any] = {"__name__": "__main__", "SIZE": size}
        text = "def make(n, seed):\n    return [lambda: SIZE] * n\n"
        exec(compile(text, "/nowhere/ipykernel_1/1.py", "exec"), cell)
        notebooks.append(identity(cell["make"]))
    assert notebooks[0] != notebooks[1]
    assert identity(type("M", (), {"__call__": lambda self, n, s: None, "__module__": "лаб", "__qualname__": "м"})())[0]
    assert identity(one)[1] != identity(two)[1]
    assert identity(one.made)[1] != identity(two.made)[1]
    assert identity(lambda n, s: one(n, s + 0))[0] != identity(lambda n, s: two(n, s + 0))[0]


def test_what_is_recorded_and_asked_for_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--env", "one/signpost.py:make", "--test-env", "one/signpost.py:make_test")
    sizes = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
    code, said, _ = command(
        capsys, "train", "dcpg", *options, "--name", "signs", "--preset", "tiny", "--steps", "256", *sizes
    )
    assert code == 0
    assert "Next: dcpg record runs/signs-dcpg-0 --env one/signpost.py:make --test-env one/signpost.py:make_test" in said
    out = folder / "runs/signs-dcpg-0"
    recorded = json.loads((out / "config.json").read_text())["environment"]
    assert recorded == {
        "name": "signs", "id": f"{folder}/one/signpost.py:make", "test_id": f"{folder}/one/signpost.py:make_test",
        "kind": "code", "spaces": {
            "shape": [16, 16, 3], "dtype": "uint8", "actions": 4, "frame": [16, 16, 3], "first_action": 0, "stack": 1,
        },
        "sha256": [hashlib.sha256(sha256_of(folder / "one/signpost.py").encode()).hexdigest()],
    }  # fmt: skip
    code, _, error = command(capsys, "resume", str(out), "--steps", "512")
    assert code == 2
    wanted = f"dcpg resume {out} --env {folder}/one/signpost.py:make --test-env {folder}/one/signpost.py:make_test"
    assert f"name it again: {wanted}\n" in error
    code, _, error = command(capsys, "resume", str(out), "--steps", "512", *options[:2])
    assert (code, "--test-env" in error) == (2, True)
    code, _, error = command(capsys, "eval", str(out), "--levels", "train", "--env", "one/signpost.py:narrow")
    assert code == 2
    assert "was made for observations uint8 (16, 16, 3) and 4 actions" in error
    assert "signpost.py:narrow has observations uint8 (16, 16, 1) and 4 actions" in error
    code, _, _ = command(capsys, "resume", str(out), "--steps", "512", *options)
    assert code == 0
    code, said, _ = command(capsys, "eval", str(out), *options, "--json")
    last = json.loads((out / "eval.jsonl").read_text().splitlines()[-1])
    assert json.loads(said)["returns"] == last["test_returns"]
    code, _, error = command(capsys, "record", str(out), *options)
    assert (code, "draws no pictures: its render_mode is None" in error) == (2, True)
    agent = dcpg.load(out)  # needs no environment
    assert agent.spaces == Spaces((16, 16, 3), np.dtype(np.uint8), 4, (16, 16, 3))
    assert 0 <= int(agent.act(np.zeros((16, 16, 3), np.uint8))) < 4
    exported = dcpg.load(dcpg.export(out, out=folder / "published"))
    frames = np.random.default_rng(0).integers(0, 256, (9, 16, 16, 3), np.uint8)
    assert exported.act(frames, greedy=True).tolist() == agent.act(frames, greedy=True).tolist()
    text = (folder / "published/config.json").read_text() + (folder / "published/README.md").read_text()
    assert str(folder) not in text  # nothing of this machine is published


def test_a_registered_id_is_used_again_and_nothing_else_is(folder: Path) -> None:
    run = dcpg.train("ppo", env="CartPole-v1", preset="tiny", steps=256, settings=QUICK, progress=False)
    assert run.directory == Path("runs/CartPole-v1-ppo-0")
    assert recorded(run.directory) == []  # it is made by a function of this package, which may change
    assert dcpg.resume(run.directory, steps=512, progress=False).summary["steps"] == 512
    assert len(dcpg.evaluate(run.directory, levels="train")["returns"]) == 2
    plain = json.loads((run.directory / "config.json").read_text())
    (folder / "trap.py").write_text(f"open({str(folder / 'sprung')!r}, 'w')\n{FILE.format(count=3)}")
    for forged in (f"{folder}/trap.py:make", "trap:make", "trap:CartPole-v1", "trap:Nothing-v0", "Nothing-v0"):
        for kind in ("gymnasium", "code"):
            plain["environment"] |= {"id": forged, "kind": kind}
            (run.directory / "config.json").write_text(json.dumps(plain))
            for call in (dcpg.resume, dcpg.evaluate, dcpg.record):
                with pytest.raises(BadInput, match="environment of your own"):
                    call(run.directory)
            assert dcpg.load(run.directory).spaces.actions == 2
    plain["environment"] |= {"id": "CartPole-v1", "test_id": f"{folder}/trap.py:make", "kind": "gymnasium"}
    (run.directory / "config.json").write_text(json.dumps(plain))
    with pytest.raises(BadInput, match="name it again"):
        dcpg.evaluate(run.directory)
    assert not (folder / "sprung").exists()


def test_an_environment_may_change_the_working_directory(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "walk.py").write_text(f"import os\nos.chdir({str(folder / 'elsewhere')!r})\n{FILE.format(count=5)}")
    options = {"preset": "tiny", "steps": 256, "settings": QUICK, "progress": False}
    run = dcpg.train("ppo", env="walk.py:make", out="mine", **options)  # type: ignore[arg-type]
    assert run.directory == folder / "mine"  # what was asked for leads elsewhere now
    assert run.summary["steps"] == 256
    assert list((folder / "elsewhere").iterdir()) == []


def test_a_changed_environment_is_warned_of_and_recorded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"preset": "tiny", "steps": 256, "settings": QUICK, "progress": False}
    run = dcpg.train("ppo", env="one/signpost.py:make", out=folder / "run", **options)  # type: ignore[arg-type]
    (first,) = recorded(folder / "run")
    changed = FILE.format(count=25)
    (folder / "one/signpost.py").write_text(changed)
    capsys.readouterr()
    dcpg.evaluate(run.directory, levels="train", env="one/signpost.py:make")
    for steps in (512, 768):
        dcpg.resume(run.directory, env="one/signpost.py:make", steps=steps, progress=False)
    said = capsys.readouterr().err
    assert said.count(f"{folder}/one/signpost.py:make was changed since this run was trained on it") == 1
    assert recorded(folder / "run")[0] == first
    assert len(set(recorded(folder / "run"))) == len(recorded(folder / "run")) == 2
    assert read_run(folder / "run")[1] == ["its environment was changed while it trained"]
    other = dcpg.train("ppo", env="one/signpost.py:make", out=folder / "other", seed=1, **options)  # type: ignore[arg-type]
    assert recorded(other.directory)[0] == recorded(folder / "run")[1]


def recorded(run: Path) -> list[str]:
    """The hashes of the files of a run's environment."""
    found: list[str] = json.loads((run / "config.json").read_text())["environment"]["sha256"]
    return found


def test_another_environment_is_warned_of_while_something_is_left_to_train(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"preset": "tiny", "steps": 256, "settings": QUICK, "progress": False}
    run = dcpg.train("ppo", env="one/signpost.py:make", out=folder / "run", **options)  # type: ignore[arg-type]
    capsys.readouterr()
    dcpg.resume(run.directory, env="two/signpost.py:make", progress=False)
    assert capsys.readouterr().err == ""  # nothing is left, so nothing is seen of it
    inexact = "This environment cannot save its state: new episodes begin here, so the resume is not exact."
    for steps, was, now in ((512, "one", "two"), (640, "two", "one")):
        dcpg.resume(run.directory, env=f"{now}/signpost.py:make", steps=steps, progress=False)
        assert capsys.readouterr().err.splitlines() == [
            inexact,
            f"{folder}/run was trained on {folder}/{was}/signpost.py:make so far and goes on with "
            f"{folder}/{now}/signpost.py:make; reports say so.",
        ]
    shutil.copytree(folder / "one", folder / "moved")
    (folder / "link").symlink_to(folder / "one")
    for steps, elsewhere in ((768, "moved"), (896, "link"), (1024, "two/../one")):  # the same file
        dcpg.resume(run.directory, env=f"{elsewhere}/signpost.py:make", steps=steps, progress=False)
        assert capsys.readouterr().err.splitlines() == [inexact]
    dcpg.resume(run.directory, env="two/signpost.py:make", progress=False)
    assert capsys.readouterr().err == ""
    recorded_now = json.loads((run.directory / "config.json").read_text())["environment"]
    places = [f"{folder}/{name}/signpost.py:make" for name in ("one", "two", "one")]  # where it was found last
    assert [recorded_now["id"], *(ids[0] for ids in recorded_now["later"])] == places
    assert len(recorded_now["sha256"]) == 3
    assert read_run(run.directory)[1] == ["its environment was changed while it trained"]


@pytest.mark.parametrize(
    "change",
    [
        {"spaces": None}, {"spaces": {}}, {"name": 3}, {"id": None}, {"test_id": 7}, {"kind": []},
        {"spaces": SPACES | {"shape": [10**9, 10**9]}}, {"spaces": SPACES | {"shape": [-1]}},
        {"spaces": SPACES | {"dtype": "object"}}, {"spaces": SPACES | {"actions": 1}},
        {"spaces": SPACES | {"stack": 3}},
    ],
)  # fmt: skip
def test_a_record_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    whole = Environment("a", "b", None, "code", Spaces((4,), np.dtype(np.float32), 2, (4,))).plain()
    assert Environment.parse(whole).plain() == whole
    with pytest.raises(BadInput, match="environment is not what a run records of one"):
        Environment.parse(whole | change)


def test_two_environments_of_one_name_are_two_games(folder: Path, tmp_path: Path) -> None:
    from dcpg.report.write import write_report

    runs = [("one/signpost.py:make", 0), ("one/signpost.py:make", 1), ("two/signpost.py:make", 0)]
    for number, (env, seed) in enumerate(runs):
        dcpg.train(
            "ppo", env=env, preset="tiny", steps=256, seed=seed, settings=QUICK, out=folder / f"runs/{number}",
            progress=False,
        )  # fmt: skip
    records, _ = read([folder / "runs"])
    games = [f"own:signpost.make ({folder}/{name}/signpost.py:make)" for name in ("one", "one", "two")]
    assert [record.game for record in records] == games
    comparison = write_report([folder / "runs"], tmp_path / "report").comparison
    assert comparison.games == sorted(set(games))
    assert [len(comparison.finals("ppo", game, "train")) for game in comparison.games] == [2, 1]
    page = json.loads((tmp_path / "report/report.json").read_text())
    assert [game["title"] for game in page["games"]] == [game.removeprefix("own:") for game in comparison.games]
    kwargs = {"preset": "tiny", "steps": 256, "settings": QUICK, "progress": False}
    for number, test in enumerate(("one/signpost.py:make_test", "two/signpost.py:make_test")):
        dcpg.train("ppo", env="one/signpost.py:make", test_env=test, out=folder / f"tested/{number}", **kwargs)
    tested, _ = read([folder / "tested"])
    assert len({record.game for record in tested}) == 2  # unseen levels of different environments
    (folder / "only").mkdir()
    (folder / "runs/0").rename(folder / "only/0")
    records, _ = read([folder / "only"])
    assert [record.game for record in records] == ["own:signpost.make"]  # alone it needs no more


def test_observations_that_are_no_box_become_vectors() -> None:
    maker = find("FrozenLake-v1")
    env = maker.make("train", 3, 0, 1)
    assert (env.shape, env.num_actions) == ((16,), 4)
    assert env.observe()[0].sum(1).tolist() == [1, 1, 1]
    env.close()


def test_a_stopped_run_says_how_python_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Stop(dcpg.Observer):
        def row(self, row: Any, steps_per_s: float) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    options = {"preset": "tiny", "steps": 512, "settings": QUICK, "observer": Stop(), "progress": False}
    with pytest.raises(Stopped, match=r"continue with: dcpg\.resume\(\".*/own\", env=\.\.\., test_env=\.\.\.\)"):
        dcpg.train("ppo", env=make, test_env=make_test, out=tmp_path / "own", **options)
    with pytest.raises(Stopped, match=r"continue with: dcpg\.resume\(\".*/pole\"\)$"):
        dcpg.train("ppo", env="CartPole-v1", out=tmp_path / "pole", **options)
    with pytest.raises(BadInput, match=r'dcpg\.analyse\(".*own", \'stiffness\', env=\.\.\., test_env=\.\.\.\)'):
        dcpg.analyse(tmp_path / "own", "stiffness")
    with pytest.raises(BadInput, match="also evaluated on unseen levels; name them too: test_env="):
        dcpg.resume(tmp_path / "own", env=make)
    other = partial(make)  # the same spaces, from elsewhere
    assert dcpg.resume(tmp_path / "own", env=other, test_env=make_test, progress=False).summary["steps"] == 512
    assert "was trained on" in capsys.readouterr().err


def test_a_lambda_is_named_again_from_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = dcpg.train(
        "ppo", env=lambda n, s: make(n, s + 0), preset="tiny", steps=128, settings=QUICK, out=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    code, _, error = command(capsys, "eval", str(run.directory))
    assert (code, f'from Python, dcpg.evaluate("{run.directory}", env=...)' in error) == (2, True)


@pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date:DeprecationWarning")
def test_commands_use_the_environment_that_a_run_was_trained_on_last(tmp_path: Path) -> None:
    """A Gymnasium id is used again, and others are asked for by the name that they had last."""
    options = {"preset": "tiny", "settings": QUICK, "progress": False}
    run = dcpg.train("ppo", env="CartPole-v1", steps=128, out=tmp_path / "run", **options)  # type: ignore[arg-type]
    dcpg.resume(run.directory, env="CartPole-v0", steps=256, progress=False)
    recorded_now = read_written(RunDirectory(run.directory)).environment
    assert recorded_now is not None
    assert recorded_now.ids == ("CartPole-v0", None)
    maker = maker_for(f"{OWN}CartPole-v1", recorded_now, None, None, "eval run")
    assert maker is not None
    assert maker.id == "CartPole-v0"
    said: list[str] = []
    dcpg.evaluate(run.directory, levels="train", show=said.append)
    assert not [line for line in said if "was trained on" in line]
    dcpg.evaluate(run.directory, levels="train", env="CartPole-v1", show=said.append)
    assert "This agent was trained on CartPole-v0; now it plays CartPole-v1." in said
    moved = dataclasses.replace(recorded_now, later=(("/one/env.py:make", "/one/env.py:test"),))
    with pytest.raises(BadInput, match=r"/one/env\.py:make"):
        maker_for(f"{OWN}CartPole-v1", moved, None, None, "eval run")


def test_the_last_evaluation_on_a_changed_environment_is_noted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was stopped in its last evaluation has nothing left to train, but something to play."""
    options = {"preset": "tiny", "steps": 256, "settings": QUICK, "progress": False}
    play = Evaluations.play

    def stops(self: Evaluations, k: int, *more: Any) -> Any:
        if k == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return play(self, k, *more)

    monkeypatch.setattr(Evaluations, "play", stops)
    with pytest.raises(Stopped):
        dcpg.train("ppo", env="one/signpost.py:make", out=folder / "run", **options)  # type: ignore[arg-type]
    monkeypatch.setattr(Evaluations, "play", play)
    assert len((folder / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert len((folder / "run" / "eval.jsonl").read_text().splitlines()) == 1
    (folder / "one/signpost.py").write_text(FILE.format(count=25))
    capsys.readouterr()
    dcpg.resume(folder / "run", env="one/signpost.py:make", progress=False)
    assert "was changed since this run was trained on it" in capsys.readouterr().err
    assert len(recorded(folder / "run")) == 2
    assert read_run(folder / "run")[1] == ["its environment was changed while it trained"]


def test_a_file_that_follows_an_id_is_recorded_with_its_hash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that a change of it is noticed: a Gymnasium id, and a run of an older release, have no hash."""
    spaces = Spaces((4,), np.dtype(np.float32), 2, (4,))
    first, later = find("CartPole-v1"), find("one/signpost.py:make")
    once = Environment.of(first, spaces).resumed_with(later)
    assert once.sha256 == (later.sha256,)
    assert not once.changed(later)
    assert once.changed(dataclasses.replace(later, sha256="another"))
    older = dataclasses.replace(Environment.of(later, spaces), sha256=())
    assert older.resumed_with(later).sha256 == (later.sha256,)
    assert older.resumed_with(later).later == ()


def test_one_of_two_environments_is_not_said_to_be_another(folder: Path) -> None:
    from dcpg.api import _show_differences

    options = {"preset": "tiny", "steps": 128, "settings": QUICK, "progress": False}
    both = {"env": "one/signpost.py:make", "test_env": "one/signpost.py:make_test"}
    run = dcpg.train("ppo", out=folder / "run", **both, **options)  # type: ignore[arg-type]
    written, said = read_written(RunDirectory(run.directory)), list[str]()
    _show_differences(written, find(both["env"]), said.append)
    assert said == []
    (folder / "one/signpost.py").write_text(FILE.format(count=25))
    _show_differences(written, find(both["env"]), said.append)
    place = f"{folder}/one/signpost.py:make"
    assert said == [f"This agent was trained on {place} as it was then; now it plays {place}."]


def test_what_a_run_began_with_is_not_where_it_lay() -> None:
    """Nor what its environment became later."""
    config = dataclasses.replace(configuration("ppo", "bigfish", 0, preset="tiny"), game=f"{OWN}maze")
    spaces = Spaces((7,), np.dtype(np.float32), 4, (7,))

    def origin(place: str, *hashes: str) -> str:
        own = Environment("maze", f"{place}:make", None, "code", spaces, hashes)
        return parse_written(to_write(config, None, own)).origin

    first = origin("/a/maze.py", "1")
    assert origin("/b/maze.py", "1") == origin("/a/maze.py", "1", "2") == first
    assert first not in (origin("/a/maze.py", "2"), origin("/a/other.py", "1"))
