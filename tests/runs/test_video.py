"""Videos: what a frame shows, what is written, and that the agent is called once per step."""

from __future__ import annotations

import ast
import errno
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

import dcpg
from dcpg.config.build import make_levels
from dcpg.core import evaluation
from dcpg.core.actor import Actor
from dcpg.envs.library import library
from dcpg.errors import BadInput, StorageFailed
from dcpg.runs import video
from dcpg.runs.agent import Agent
from dcpg.runs.evaluate import level_range, recorded_levels
from tests.cli.test_cli import run
from tests.core.test_evaluation import Scripted, Watching


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("video") / "run"
    settings = {"evaluation.episodes": 2, "evaluation.max_steps": 20}
    dcpg.train("ppg", "leaper", preset="tiny", steps=128, out=out, settings=settings)
    return out


@pytest.fixture
def agent(trained: Path) -> Agent:
    return dcpg.load(trained)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MAX_FRAMES", 12)
    monkeypatch.setattr(video, "END", 3)


def frames_of(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        (stream,) = container.streams.video
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == video.FPS
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]


def near(pixel: Any, colour: video.Colour, by: int = 40) -> bool:
    return bool(np.abs(np.asarray(pixel, int) - colour).max() <= by)


def test_actions_are_named_after_the_directions_of_procgen() -> None:
    # not imported: procgen-mirror's imports gym, which warns
    source = ast.parse((library().assets.parents[1] / "env.py").read_text())
    lists = [ast.literal_eval(n) for n in ast.walk(source) if isinstance(n, ast.List) and len(n.elts) == 15]
    (keys,) = (found for found in lists if ("LEFT", "DOWN") in found)
    moves = ["-".join(map(str.lower, combo)) or "no-op" for combo in keys[:9]]
    assert all(len(combo) == len(combo[0]) == 1 for combo in keys[9:])  # letters: what they do depends on the game
    assert list(video.ACTIONS) == [*moves, *(f"special {n}" for n in range(1, 7))]


def test_an_onlooker_sees_what_the_agent_said_and_is_no_extra_work() -> None:
    class Valued(Watching):
        def __call__(self, frames: np.ndarray) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return self.log_policy(frames), {"value": torch.full((len(frames),), float(frames[0, 0]))}

    def played(watch: Any) -> tuple[evaluation.Episodes, list[int]]:
        actor = Valued()
        protocol = evaluation.Protocol("value", gamma=0.5, max_steps=100)
        normaliser = evaluation.RewardNormaliser(np.zeros(1))
        key = (0, "eval", "train", 0)
        return evaluation.play(Scripted(3), actor, normaliser, protocol, key, watch=watch), actor.sizes  # type: ignore[arg-type]

    turns: list[evaluation.Turn] = []
    watched, sizes = played(turns.append)
    assert (watched, sizes) == played(None)
    assert sizes == [3, 3, 2, 1]
    # environments end after 2, 3 and 4 steps
    assert [t.playing.tolist() for t in turns] == [[True] * 3, [True] * 3, [False, True, True], [False, False, True]]
    assert [t.values.tolist() for t in turns] == [[0.0] * 3, [1.0] * 3, [2.0] * 2, [3.0]]
    assert [len(t.log_policy) for t in turns] == [3, 3, 2, 1]
    assert [t.step.dones.tolist()[2] for t in turns] == [False, False, False, True]


@pytest.mark.parametrize("scale", [1, 2])
def test_bars_are_as_long_as_probabilities_and_the_taken_one_stands_out(scale: int) -> None:
    tile = video.Tile("level 7", scale)
    policy = [0.5, 0.25, *[0.25 / 13] * 13]
    tile.think(policy, 1.5, 1)
    pixels = np.asarray(tile.image)
    for row, p in enumerate(policy):
        y = (video.BARS + row * video.ROW + video.ROW // 2) * scale
        line = pixels[y, (video.GAME + video.BAR_LEFT) * scale : (video.GAME + video.BAR_RIGHT) * scale]
        colour = video.TAKEN if row == 1 else video.BAR
        assert abs((line == colour).all(1).sum() - p * 80 * scale) <= 0.5
        assert (line == video.FIELD).all(1).sum() + (line == colour).all(1).sum() == 80 * scale


def test_the_curve_rises_with_the_value() -> None:
    tile = video.Tile("level 7", 2)
    for value in np.linspace(-1, 3, 51):
        tile.think([1 / 15] * 15, float(value), 0)
    top, bottom = (2 * y for y in video.CURVE)
    panel = np.asarray(tile.image)[top:bottom, 2 * video.GAME :]
    ys, xs = np.nonzero((panel == video.VALUE).all(2))
    assert np.corrcoef(xs, ys)[0, 1] < -0.99
    assert np.ptp(ys) > 0.8 * (bottom - top)
    assert np.ptp(xs) > 0.8 * 2 * (video.PANEL - 2 * video.MARGIN - 22)


def test_a_finished_tile_is_dark_but_for_its_return() -> None:
    tile = video.Tile("level 7", 1)
    tile.look(np.full((512, 512, 3), 200, np.uint8))
    tile.think([1 / 15] * 15, 0.0, 0)
    assert tile.image.getpixel((10, 10)) == (200, 200, 200)
    tile.total = 10.0
    tile.finish("return")
    pixels = np.asarray(tile.image)
    assert pixels[10, 10].tolist() == [60, 60, 60]
    bright = (pixels > 180).all(2)
    _, xs = np.nonzero(bright)
    assert bright.sum() > 50
    assert xs.min() > video.GAME / 2 - 60
    assert xs.max() < video.GAME / 2 + 60


@pytest.mark.parametrize(
    ("count", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (4, 2, 2), (5, 3, 2), (7, 3, 3), (9, 3, 3)]
)
def test_grids_have_even_sizes(count: int, columns: int, rows: int) -> None:
    picture = video.tiled([video.Tile(f"level {level}", 1).image for level in range(count)])
    assert picture.size == (columns * 432 - 4, rows * 260 - 4)
    assert picture.width % 2 == picture.height % 2 == 0


def test_one_level_at_full_size(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("__call__", "log_policy"):
        usual = getattr(Actor, name)
        monkeypatch.setattr(Actor, name, lambda *a, name=name, usual=usual: (asked.append(name), usual(*a))[1])
    played = video.record(agent, make_levels(agent.config, [3], render=True), tmp_path / "one.mp4")
    assert asked == ["__call__"] * played.lengths[0]  # policy and value together, once a step
    frames = frames_of(tmp_path / "one.mp4")
    assert frames[0].shape == (512, 512 + 344, 3)
    assert len(frames) == played.lengths[0] + 3
    env = make_levels(agent.config, [3], render=True)
    assert np.abs(frames[0][:, :512].astype(int) - env.pictures()[0]).mean() < 4  # the game itself, as it starts
    env.close()
    assert near(frames[0][6, 600], video.BACKGROUND)
    assert frames[-1][:, :512].mean() < 0.5 * frames[0][:, :512].mean()
    assert [p.name for p in tmp_path.iterdir()] == ["one.mp4"]


def test_a_video_repeats_and_an_onlooker_changes_nothing(agent: Agent, tmp_path: Path) -> None:
    played = [
        video.record(agent, make_levels(agent.config, [3, 17, 120], render=True), tmp_path / name)
        for name in ("a.mp4", "b.mp4")
    ]
    assert played[0] == played[1]
    assert played[0].levels == [3, 17, 120]
    frames = [frames_of(tmp_path / name) for name in ("a.mp4", "b.mp4")]
    assert np.array_equal(frames[0], frames[1])
    env = make_levels(agent.config, [3, 17, 120])
    protocol = evaluation.Protocol(agent.method.advantages, 0.999, 12)
    key = (agent.config.seed, "video", "levels-3", agent.k)
    assert evaluation.play(env, agent.actor, agent.normaliser, protocol, key).returns == played[0].returns
    env.close()


def test_gifs_are_small_and_as_fast_as_the_game(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = video.record(agent, make_levels(agent.config, [3, 4], render=True), tmp_path / "two.gif")
    with Image.open(tmp_path / "two.gif") as picture:
        assert picture.size == (480, 143)
        assert picture.info["duration"] == 70
        total = 0
        for i in range(picture.n_frames):
            picture.seek(i)
            total += picture.info["duration"]
        assert total == 70 * (max(played.lengths) + 3)  # frames that are equal are one, and stand longer
    monkeypatch.setattr(video, "GIF_FRAMES", 6)
    video.record(agent, make_levels(agent.config, [3, 4], render=True), tmp_path / "thin.gif")
    with Image.open(tmp_path / "thin.gif") as picture:
        assert picture.n_frames <= 6
        assert picture.info["duration"] >= 140


def test_a_disk_that_refuses_leaves_the_old_video(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.mp4").write_bytes(b"old")

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(video, "tiled", refuse_after(video.tiled, refuse, 4))
    with pytest.raises(StorageFailed, match=r"r\.mp4 cannot be written \(No space left on device\)"):
        video.record(agent, make_levels(agent.config, [3], render=True), tmp_path / "r.mp4")
    assert [p.name for p in tmp_path.iterdir()] == ["r.mp4"]
    assert (tmp_path / "r.mp4").read_bytes() == b"old"


def refuse_after(work: Any, refuse: Any, calls: int) -> Any:
    left = [calls]

    def counted(*arguments: Any) -> Any:
        left[0] -= 1
        return work(*arguments) if left[0] >= 0 else refuse()

    return counted


def test_a_place_that_cannot_be_written(agent: Agent) -> None:
    with pytest.raises(StorageFailed, match="cannot be written"):
        video.record(agent, make_levels(agent.config, [3], render=True), Path("/proc/r.mp4"))


def test_a_colon_in_a_path_is_a_colon(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder takes what stands before it for a protocol, and `file:x/...` would lead to x, through its links."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious").write_text("precious")
    for folder in ("file:run", "run", "2026-11-18T20:43"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ".tmp-replay.mp4").symlink_to(tmp_path / "precious")
    for folder in ("file:run", "2026-11-18T20:43"):
        video.record(agent, make_levels(agent.config, [3], render=True), Path(folder) / "replay.mp4")
        assert len(frames_of(tmp_path / folder / "replay.mp4")) > 3
    assert (tmp_path / "precious").read_text() == "precious"
    assert [p.name for p in (tmp_path / "run").iterdir()] == [".tmp-replay.mp4"]


def test_levels_by_range_and_by_list(agent: Agent) -> None:
    assert level_range("3") == [3]
    assert level_range("5-7") == [5, 6, 7]
    assert level_range("3, 17,120-122") == [3, 17, 120, 121, 122]
    assert level_range("2147483646") == [2147483646]
    for text, words in {
        "7-5": "upwards",
        "3,7-5": "upwards",
        "2147483647": "below 2147483647",
        "0-99999,200000": "at most 100,000",
        "3,17,3": "name level 3 more than once",
        "0-5,4": "name level 4 more than once",
        "": "must be train, test",
        "3,": "must be train, test",
        "-3": "must be train, test",
        "²": "must be train, test",
        "3;4": "must be train, test",
        "9" * 5000: "must be train, test",
    }.items():
        with pytest.raises(BadInput, match=words):
            level_range(text)
    assert recorded_levels(agent, "1,3,5-11") == [1, 3, 5, 6, 7, 8, 9, 10, 11]
    with pytest.raises(BadInput, match="at most nine levels side by side"):
        recorded_levels(agent, "0-9")
    assert all(0 <= level < 200 for level in recorded_levels(agent, "train"))
    assert len(recorded_levels(agent, "test")) == 4


def test_record_from_the_command_line(
    capsys: pytest.CaptureFixture[str], trained: Path, tmp_path: Path, agent: Agent
) -> None:
    code, text, _ = run(capsys, "record", str(trained), "--levels", "3,17")
    assert code == 0
    played = video.record(agent, make_levels(agent.config, [3, 17], render=True), tmp_path / "again.mp4")
    for level, value, length in zip([3, 17], played.returns, played.lengths, strict=True):
        assert f"level {level}: return {value:g} in {length} steps" in text
    assert frames_of(trained / "replay.mp4")[0].shape == (256, 860, 3)
    code, text, _ = run(capsys, "eval", str(trained), "--levels", "3,17,120-121", "--json")
    assert code == 0
    assert '"level_seeds": [3, 17, 120, 121]' in text
    for arguments in (["--out", "r.avi"], ["--levels", "0-20"], ["--out", str(tmp_path / "no" / "r.mp4")]):
        assert run(capsys, "record", str(trained), *arguments)[0] == 2
