"""Exports: the same agent from a folder that holds weights, a configuration, a card and a video."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import statistics
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from markdown_it import MarkdownIt
from safetensors.torch import load_file, save_file

import dcpg
from dcpg.config.resolve import resolve
from dcpg.config.schema import Config
from dcpg.config.written import from_json, parse_written, to_write
from dcpg.core.rewards import RewardNormaliser
from dcpg.errors import BadInput, DcpgError, InUse, NoValidCheckpoint, StorageFailed
from dcpg.machine.automatic import settled
from dcpg.runs import export, video
from dcpg.storage.rows import SPLITS, read_rows
from dcpg.storage.rundir import RunDirectory
from dcpg.text import one_line
from dcpg.training import start as launch
from dcpg.training.weights import Moment
from tests import synthetic
from tests.cli.test_cli import run

SETTINGS = {
    "evaluation.episodes": 3,
    "evaluation.max_steps": 20,
    "keep_every": 128,
    "algorithm.beta_V": 0.3,
    "network.channels": (4, 8),
    "checkpoints.minutes": 7.5,
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MAX_FRAMES", 4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "run"
    dcpg.train("dcpg", "coinrun", preset="tiny", steps=384, seed=5, out=out, settings=SETTINGS)
    return out


@pytest.fixture
def exported(trained: Path, tmp_path: Path) -> Path:
    return export.write(trained, tmp_path / "agent")


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def front_matter(folder: Path) -> dict[str, Any]:
    _, matter, _ = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(matter)  # type: ignore[no-any-return]


def test_the_agent_of_an_export_is_the_agent_of_the_run(trained: Path, exported: Path) -> None:
    assert set(contents(exported)) == {"model.safetensors", "config.json", "README.md", "replay.mp4"}
    one, two = dcpg.load(trained), dcpg.load(exported)
    assert one.config == two.config
    frames = np.random.default_rng(0).integers(0, 256, (32, *one.shape), np.uint8)
    for _ in range(3):
        assert one.act(frames).tolist() == two.act(frames).tolist()
    assert torch.equal(one.actor.log_policy(frames), two.actor.log_policy(frames))
    for levels in ("train", "test", "3,17,120-122"):
        assert dcpg.evaluate(trained, levels=levels) == dcpg.evaluate(exported, levels=levels)


@pytest.mark.parametrize("what", ["rows of another run", "an altered return", "an altered episode", "not finished"])
def test_returns_that_are_not_the_runs_own_are_played_anew(trained: Path, tmp_path: Path, what: str) -> None:
    run, said = tmp_path / "run", list[str]()
    shutil.copytree(trained, run)
    rows = read_rows(run / "eval.jsonl")
    for split, mean in (
        (("train", 7.0), ("test", 9.0)) if "altered" not in what else (("train", rows[-1]["train_return"]),)
    ):
        if what == "an altered episode":  # which leaves the mean as it is
            rows[-1][f"{split}_returns"] = [mean - 1, mean, mean + 1]
        else:
            rows[-1] |= {f"{split}_return": mean + 1, f"{split}_returns": [mean + 1] * 3}
    (run / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if what == "not finished":
        plain = json.loads((run / "summary.json").read_bytes())
        (run / "summary.json").write_text(json.dumps(plain | {"status": "stopped"}))
    folder = export.write(run, tmp_path / "agent", show=said.append)
    (model,) = front_matter(folder)["model-index"]
    means = {r["dataset"]["name"]: r["metrics"][0]["value"] for r in model["results"]}
    for split, name in SPLITS.items():
        assert means[f"coinrun, {name}"] == dcpg.evaluate(trained, levels=split)["return"]
    assert "evaluating them" in said[-2]
    text = (folder / "README.md").read_text()
    assert "Note: " in text
    assert ("reports leave this run out" in text) == (what != "an altered episode")


def test_the_returns_of_a_milestone_are_the_runs_own_or_played_anew(trained: Path, tmp_path: Path) -> None:
    """It is written before its evaluation; the newest checkpoint has a hash of all rows before it."""
    run, said = tmp_path / "run", list[str]()
    shutil.copytree(trained, run)
    export.write(run, tmp_path / "own", at=128, show=said.append)
    assert not any("evaluating them" in text for text in said)
    rows = read_rows(run / "eval.jsonl")
    assert rows[0]["steps"] == 128
    rows[0] |= {"test_return": 9.0, "test_returns": [9.0] * 3}
    (run / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "summary.json").unlink()
    folder = export.write(run, tmp_path / "other", at=128, show=said.append)
    assert any("evaluating them" in text for text in said)
    own, other = (front_matter(one)["model-index"] for one in (tmp_path / "own", folder))
    assert own == other


def test_only_what_an_agent_needs_is_in_the_folder(trained: Path, exported: Path) -> None:
    tensors = load_file(exported / "model.safetensors")
    assert {k: v.shape for k, v in tensors.items()} == {
        k: v.shape for k, v in dcpg.load(trained).network.state_dict().items()
    }
    plain, before = (json.loads((folder / "config.json").read_bytes()) for folder in (exported, trained))
    about = plain.pop("export")
    assert plain == before
    assert (about["steps"], about["evaluation"]) == (384, 1)
    assert about["normaliser"]["var"] == dcpg.load(trained).normaliser.var
    for name, data in contents(exported).items():
        assert str(trained.parent).encode() not in data, name


def test_the_card_tells_the_runs_own_figures(trained: Path, exported: Path) -> None:
    (row,) = [row for row in read_rows(trained / "eval.jsonl") if row["steps"] == 384]
    matter, text = front_matter(exported), (exported / "README.md").read_text()
    assert matter["library_name"] == "dcpg"
    assert matter["pipeline_tag"] == "reinforcement-learning"
    assert matter["license"] == "mit"
    assert "procgen-coinrun" in matter["tags"]
    (model,) = matter["model-index"]
    assert model["name"] == "dcpg-coinrun-5"
    means = {r["dataset"]["name"]: r["metrics"][0]["value"] for r in model["results"]}
    assert means == pytest.approx(
        {"coinrun, unseen levels": row["test_return"], "coinrun, training levels": row["train_return"]}
    )
    for split, name in SPLITS.items():
        returns = row[f"{split}_returns"]
        spread = 1.96 * statistics.stdev(returns) / 3**0.5
        assert f"| {name} | {row[f'{split}_return']:.2f} ± {spread:.2f} | 3 |" in text
    for words in ("| seed | 5 |", "| steps | 384 |", "| preset | `tiny` |", "level seeds 0 to 199", "2,147,483,647"):
        assert words in text
    for name, version in json.loads((trained / "config.json").read_bytes())["versions"].items():
        assert f"{name} {version}" in text
    bibtex = re.search(r"```bibtex\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.DOTALL)
    assert bibtex is not None
    assert bibtex[1] in text


def test_the_code_on_the_card_runs(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(exported.parent)
    exported.rename("folder")
    block = re.search(r"```python\n(.*?)```", Path("folder/README.md").read_text(), re.DOTALL)
    assert block is not None
    found: dict[str, Any] = {}
    exec(block[1], found)
    assert found["agent"].steps == 384


def commanded(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Config:
    """The configuration that a command would train with."""

    class Enough(BadInput):
        """The run begins here."""

    def start(config: Config, *_: Any) -> None:
        found.append(config)
        raise Enough("seen")

    found: list[Config] = []
    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr("dcpg.training.start._announce", lambda *_: None)  # it measures, which takes time
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(words)
    assert program == "dcpg"
    assert run(capsys, *arguments)[0] == 2
    return found[0]


def test_the_command_on_the_card_makes_the_same_configuration(
    trained: Path,
    exported: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    block = re.search(r"```sh\n(.*?)\n```", (exported / "README.md").read_text(), re.DOTALL)
    assert block is not None
    config = from_json(RunDirectory(trained).read_config())
    assert settled(commanded(block[1], capsys, monkeypatch, tmp_path)) == config
    assert block[1].count("--set") == len(SETTINGS) + 1
    assert "--set machine.device=cpu" in block[1]  # not what another machine's `auto` would mean
    assert "--seed 5" in block[1]


@pytest.mark.parametrize(
    ("method", "preset", "settings"),
    [
        ("dcpg", "laptop", {}),
        ("plr", "tiny", {"levels.rho": 0.3, "levels.seeds": (3, 1, 4)}),
        ("ucb-drac", "laptop", {"drac.c": 0.2, "machine.threads": 3, "machine.precision": "bf16"}),
        ("dcpg", "paper", {"env.frame_size": 32, "machine.chunk": 120}),  # the table's chunk of another size
        ("ppo", "tiny", {"augment": "crop", "wandb": True, "check_room": False, "algorithm.learning_rate": 1e-5}),
    ],
)
def test_commands_resolve_to_their_configuration_on_other_machines(
    method: str,
    preset: str,
    settings: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    config = settled(resolve(method, "maze", preset=preset, seed=2, settings=settings))
    written = parse_written(to_write(config, None))
    words = export.train_again(written)
    monkeypatch.setattr("dcpg.config.resolve.available_cores", lambda: 64)
    monkeypatch.setattr("dcpg.machine.automatic.bf16_pays", lambda device: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert settled(commanded(words, capsys, monkeypatch, tmp_path)) == config


def test_a_milestone_is_evaluated_if_the_run_did_not(trained: Path, tmp_path: Path) -> None:
    said: list[str] = []
    folder = export.write(trained, tmp_path / "early", 256, said.append)
    assert [text.split()[0] for text in said] == ["These", "Recording"]
    assert dcpg.load(folder).steps == dcpg.load(folder, 256).steps == 256
    result = dcpg.evaluate(trained, levels="test", at=256)
    assert dcpg.evaluate(folder, levels="test") == result
    assert front_matter(folder)["model-index"][0]["results"][0]["metrics"][0]["value"] == pytest.approx(
        result["return"]
    )
    assert "This trains to 384 steps; the weights here are those at 256." in (folder / "README.md").read_text()
    with pytest.raises(BadInput, match="weights at 256 steps alone"):
        dcpg.load(folder, 384)


def test_weights_of_another_run_leave_no_path(trained: Path, exported: Path, tmp_path: Path) -> None:
    out = tmp_path / "second"
    small = {k: v for k, v in SETTINGS.items() if k != "keep_every"}
    dcpg.train("dcpg", "coinrun", preset="tiny", steps=128, out=out, init=exported, settings=small)
    folder = export.write(out)
    assert folder == out / "export"
    assert json.loads((folder / "config.json").read_bytes())["init"] is None
    text = (folder / "README.md").read_text()
    assert str(tmp_path) not in text
    assert "started from the weights of another run" in text


@pytest.mark.parametrize(
    "case", ["weights", "cut", "missing", "foreign", "pickle", "about", "normaliser", "mode", "config", "method"]
)
def test_damaged_and_foreign_folders_are_refused_in_a_sentence(case: str, trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported_once(trained), tmp_path / "agent")
    weights, config = folder / "model.safetensors", folder / "config.json"
    plain = json.loads(config.read_bytes())
    kind: type[DcpgError] = NoValidCheckpoint
    if case == "weights":
        data = bytearray(weights.read_bytes())
        data[-3] ^= 1
        weights.write_bytes(data)
    elif case == "cut":
        weights.write_bytes(weights.read_bytes()[:-8])
    elif case == "missing":
        weights.unlink()
    elif case == "foreign":  # whole, but of another network
        save_file({"a": torch.zeros(3)}, weights)
        plain["export"]["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    elif case == "pickle":
        torch.save(dcpg.load(trained).network.state_dict(), weights)
        plain["export"]["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    elif case == "about":
        plain["export"] = ["steps"]
    elif case == "normaliser":
        plain["export"]["normaliser"]["var"] = -1.0
    elif case == "mode":
        plain["env"]["mode"] = "hard"
    elif case == "config":
        kind = BadInput
        del plain["levels"]
    elif case == "method":
        kind = BadInput
        plain["method"] = "dqn"
    config.write_text(json.dumps(plain))
    with pytest.raises(kind) as caught:
        dcpg.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def exported_once(trained: Path) -> Path:
    folder = trained / "export"
    return folder if folder.exists() else export.write(trained)


def test_an_export_replaces_an_export_and_nothing_else(
    trained: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (exported / "README.md").write_text("old")
    export.write(trained, exported)
    assert "# dcpg on coinrun" in (exported / "README.md").read_text()
    (tmp_path / "empty").mkdir()
    export.write(trained, tmp_path / "empty")
    (exported / "notes.txt").write_text("mine")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "config.json").write_text("[1]")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for place, words in {
        exported: "holds notes.txt",
        tmp_path / "strange": "is not an export",
        tmp_path / "file": "is not a folder",
        tmp_path / "link": "is not a folder",
        trained: "which is no part of an export",
    }.items():
        before = contents(place) if place in (exported, tmp_path / "strange") else None
        with pytest.raises(BadInput, match=words):
            export.write(trained, place)
        assert before is None or contents(place) == before
    for beside in (".tmp-mine", ".old-mine"):
        (tmp_path / beside).mkdir()
        (tmp_path / beside / "thesis.txt").write_text("mine")
        with pytest.raises(BadInput, match=f"{beside} holds thesis.txt, which is no part of an unfinished mine"):
            export.write(trained, tmp_path / "mine")
        assert (tmp_path / beside / "thesis.txt").read_text() == "mine"
        (tmp_path / beside / "thesis.txt").rename(tmp_path / beside / ".tmp-replay.mp4")
    export.write(trained, tmp_path / "mine")
    assert not any((tmp_path / beside).exists() for beside in (".tmp-mine", ".old-mine"))
    with pytest.raises(BadInput, match="untrained"):
        export.write(trained, tmp_path / "zero", 0)
    with pytest.raises(BadInput, match="is an export already"):
        export.write(tmp_path / "empty", tmp_path / "zero")

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    kept = contents(tmp_path / "empty")
    monkeypatch.setattr(video, "record", refuse)
    for place in (tmp_path / "empty", tmp_path / "zero"):
        with pytest.raises(StorageFailed, match=r"cannot be written \(No space left on device\)"):
            export.write(trained, place)
    assert contents(tmp_path / "empty") == kept
    assert sorted(p.name for p in tmp_path.iterdir()) == ["agent", "empty", "file", "link", "mine", "strange"]


class Light(gymnasium.Env[Any, Any]):
    """One of two lights is on; the action that names it gives 1. Eight steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, self.t = float(action == self.on), self.t + 1
        return self._see(), reward, self.t == 8, False, {}

    def _see(self) -> np.ndarray:
        self.on = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.on]


def lights(num_envs: int, seed: int) -> SyncVectorEnv:
    return SyncVectorEnv([Light] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def test_your_own_environment(tmp_path: Path) -> None:
    out = tmp_path / "run"
    dcpg.train("ppo", env=lights, test_env=lights, preset="tiny", steps=256, out=out)
    folder = export.write(out)
    assert set(contents(folder)) == {"model.safetensors", "config.json", "README.md"}
    text = (folder / "README.md").read_text()
    assert "There is no video" in text
    assert (
        "``sh\ndcpg train ppo --env test_export.py:lights --test-env test_export.py:lights --name test_export.lights"
        in text
    )
    row = read_rows(out / "eval.jsonl")[-1]
    values = [r["metrics"][0]["value"] for r in front_matter(folder)["model-index"][0]["results"]]
    assert values == pytest.approx([row["test_return"], row["train_return"]])
    one, two = dcpg.load(out, env=lights), dcpg.load(folder, env=lights)
    frames = np.random.default_rng(0).random((32, 2), np.float32)
    assert one.act(frames).tolist() == two.act(frames).tolist()
    own = {"env": lights, "test_env": lights, "levels": "test"}
    assert dcpg.evaluate(out, **own) == dcpg.evaluate(folder, **own)
    assert dcpg.load(folder).act(frames, greedy=True).tolist() == one.act(frames, greedy=True).tolist()
    with pytest.raises(BadInput, match="environment of your own"):
        dcpg.evaluate(folder)


def test_names_from_outside_are_text_on_the_card(tmp_path: Path) -> None:
    """As Markdown renders it: no tag, link or picture but the card's own, and nothing ends a table or a block."""
    words = (
        "<img src=x onerror=alert(1)>|`<b>`|**b** [x](https://example.org) ![x](y) https://example.org www.example.org "
        "<https://example.org> $x$ #1 a_b_ \\ &lt; \n```\n<script>\n---\n# heading\n\x1b[1m\u202e"
    )
    shown = one_line(words)
    path = synthetic.of_a_stranger(tmp_path / "run", words, plugin=False)
    plain = json.loads((path / "config.json").read_text())
    plugin = {"kind": "encoder", "name": words, "plugin": f"{words}.py", "sha256": words}
    library = {"library": words, "pictures": words}
    plain["environment"] |= {"id": "maze.py:make", "test_id": None}  # or there would be no command
    written = parse_written(plain | {"plugins": [plugin], "procgen": library, "versions": {words: words}})
    moment = Moment(b"", RewardNormaliser(1, 0.99), 128, 0)
    text = export.card(written, moment, {"test": [1.0, 2.0], "train": [3.0]})
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    (tmp_path / "README.md").write_text(text)
    assert front_matter(tmp_path)["tags"][-1] == f"own-{words}"
    assert front_matter(tmp_path)["model-index"][0]["results"][0]["dataset"]["name"] == f"{words}, unseen levels"
    head, body = text.removeprefix("---\n").split("---\n", 1)
    assert not set(head) & set("<>&")
    tokens = [t for one in MarkdownIt("gfm-like", {"linkify": False}).parse(body) for t in (one, *(one.children or []))]
    live = {"html_block", "html_inline", "link_open", "image", "em_open", "strong_open"}
    assert live & {token.type for token in tokens} == set()
    headings = [tokens[i + 1].content for i, t in enumerate(tokens) if t.type == "heading_open"]
    assert headings[1:] == ["Returns", "Use", "Reproducing it", "Citation", "Licence"]
    titled = next(t for t in tokens if t.type == "inline")
    assert "".join(child.content for child in titled.children or []) == f"dcpg on {shown}"
    assert [t.info for t in tokens if t.type == "fence"] == ["python", "sh", "bibtex"]
    cells = [len([t for t in row.split("\n") if t]) for row in body.split("\n\n") if row.startswith("| | |")]
    assert cells == [9]
    code = next(t.content for t in tokens if t.type == "fence")
    compile(code, "card", "exec")
    assert f"# import {shown}.py here" in code
    outside = re.sub(r"^```.*?^```$", "", body, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"<[a-z/!]", outside)
    assert "://" not in outside


def test_from_the_command_line(capsys: pytest.CaptureFixture[str], trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "an agent"
    code, text, _ = run(capsys, "export", str(trained), "--out", str(out))
    assert code == 0
    assert f"hf upload USER/NAME '{out}'" in text
    _, text, _ = run(capsys, "eval", str(out), "--json")
    assert json.loads(text)["returns"] == read_rows(trained / "eval.jsonl")[-1]["test_returns"]
    code, text, _ = run(capsys, "record", str(out), "--levels", "3")
    assert code == 0
    code, _, err = run(capsys, "export", str(tmp_path / "none"))
    assert (code, err.count("\n")) == (2, 1)
    assert "There is no run at" in err


def test_two_exports_to_one_folder_are_not_mixed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with export.replacing_folder(out) as first:
        (first / "a").write_text("first")
        with pytest.raises(InUse, match=r"Another process is writing .*out now"), export.replacing_folder(out):
            pass
        assert (first / "a").read_text() == "first"
    assert (tmp_path / "out" / "a").read_text() == "first"
    first.mkdir()  # left by one that was killed
    with export.replacing_folder(tmp_path / "out") as again:
        (again / "a").write_text("again")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "a").read_text() == "again"
