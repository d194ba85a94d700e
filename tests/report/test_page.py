"""The page in a real browser, and the server that refreshes it."""

from __future__ import annotations

import http.client
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Error, Page

from dcpg.errors import BadInput
from dcpg.report.serve import Shelf, server, watch
from dcpg.report.write import make
from dcpg.runs import video
from tests import synthetic
from tests.browser import browser

METHODS, GAMES, SEEDS = ("ppo", "ppg", "dcpg"), ("bigfish", "starpilot"), (0, 1)
PHONE, WIDE = (390, 844), (1360, 900)
WINDOWS = [(size, scheme) for size in (WIDE, PHONE) for scheme in ("light", "dark")]
HOSTILE = "</script><script>window.harmed=1</script><img src=x onerror=window.harmed=1>"


@dataclass
class Made:
    """A report and the numbers that it is of."""

    folder: Path
    data: dict[str, Any]
    runs: dict[tuple[str, str, int], synthetic.Run]

    def mean(self, method: str, game: str, column: str) -> list[float]:
        """Over seeds, at each evaluation."""
        rows = [self.runs[method, game, seed].rows for seed in SEEDS]
        return [statistics.fmean(row[column] for row in at) for at in zip(*rows, strict=True)]


def build(top: Path) -> Made:
    runs = {}
    for method in METHODS:
        for game in GAMES:
            for seed in SEEDS:
                path = top / "runs" / f"{game}-{method}-{seed}"
                runs[method, game, seed] = synthetic.some(path, method, game, seed)
    levels = {
        "analysis": "levels",
        "method": "ddcpg",
        "game": "starpilot",
        "seed": 0,
        "steps": 2048,
        "train": {"levels": [0, 1, 2, 3, 4, 5, 6, 7], "returns": [0, 1, 2, 3, 4, 5, 6, 0], "mean": 2.6},
        "test": {"levels": [900, 901, 902, 903], "returns": [0, 3, 1, 7], "mean": 2.75},
    }
    config = synthetic.configuration("ddcpg", "starpilot", 0, preset="tiny", settings={"analyse": "stiffness"})
    measured = synthetic.stiffness_rows(config, random.Random(1), 5)
    rows = synthetic.rows_of(config, random.Random(2), rollouts=(1, 8))
    hostile = {"versions": {"dcpg": HOSTILE, "python": "3.11"}}
    unfinished = synthetic.write(
        top / "runs" / "starpilot-ddcpg-0", config, rows, measured, {"levels": levels}, **hostile
    )
    with video.writing(unfinished / "replay.mp4", (64, 64)) as add:
        for shade in range(0, 250, 10):
            add(Image.new("RGB", (64, 64), (shade, 80, 255 - shade)))
    torn = top / "runs" / "<img src=x onerror=window.harmed=1>"
    synthetic.some(torn, "plr")
    (torn / "eval.jsonl").write_text('{"steps": "many", "train_return": 1}\n')
    report = make([top / "runs"], top / "out", pictures=False)
    assert [p.path for p in report.problems] == [torn]
    return Made(top / "out", json.loads((top / "out" / "report.json").read_text()), runs)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return build(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@dataclass
class View:
    """A window, what it complained of and what it asked for."""

    page: Page
    errors: list[str]
    asked: list[str]

    def charts(self, where: str) -> list[dict[str, Any]]:
        """Each chart of a section: its game, and the names, x and y of its lines."""
        self.page.evaluate("dcpgReport.drawAll()")
        found: list[dict[str, Any]] = self.page.evaluate(
            """(where) => [...document.querySelectorAll(`#${where} .chart`)].map((node) => ({
                title: node.layout.title ? node.layout.title.text : "", width: node.clientWidth,
                marks: node.querySelectorAll("path.js-line, .point, .points path, .hm image").length,
                lines: node.data.filter((t) => t.meta !== "band").map((t) => ({
                    name: t.name, x: [...t.x], y: [...t.y], z: t.z ? t.z.map((r) => [...r]) : null})),
                bands: node.data.filter((t) => t.meta === "band").length }))""",
            where,
        )
        return found

    def press(self, control: str, value: str, within: str = "") -> None:
        self.page.click(f'{within} [data-control="{control}"] [data-value="{value}"]')


@pytest.fixture
def look(chromium: Browser) -> Iterator[Callable[..., View]]:
    contexts = []

    def opened(address: str, size: tuple[int, int] = WIDE, scheme: Any = "light") -> View:
        context = chromium.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        view = View(page, [], [])

        def hear(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                view.errors.append(message.text)

        page.on("console", hear)
        page.on("pageerror", lambda error: view.errors.append(str(error)))
        page.on("request", lambda request: view.asked.append(request.url))
        page.goto(address)
        until(page, "window.dcpgReport !== undefined")
        return view

    yield opened
    for context in contexts:
        context.close()


def until(page: Page, condition: str) -> None:
    """The browser's own waiting would evaluate text, which the page forbids; a reload may come in between."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if page.evaluate(condition):
                return
        except Error:
            page.wait_for_load_state()
        page.wait_for_timeout(100)
    raise AssertionError(f"it never came to this: {condition}")


def address(made: Made) -> str:
    return (made.folder / "report.html").as_uri()


@pytest.mark.parametrize(("size", "scheme"), WINDOWS)
def test_it_renders_on_every_screen(made: Made, look: Any, size: tuple[int, int], scheme: str) -> None:
    view = look(address(made), size, scheme)
    page = view.page
    sections = page.eval_on_selector_all("section", "nodes => nodes.map((n) => n.id)")
    assert sections == [
        "overview", "curves", "gap", "values", "stiffness", "statistics", "levels", "video", "tables", "algorithm",
        "configuration", "missing", "problems",
    ]  # fmt: skip
    for section in ("overview", "curves", "gap", "values", "stiffness", "statistics"):
        charts = view.charts(section)
        assert charts, section
        assert all(chart["lines"] and chart["marks"] > 0 for chart in charts), section
        assert all(200 < chart["width"] <= size[0] for chart in charts), section
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 22)"
    assert dark == (scheme == "dark")
    assert view.errors == []
    own = address(made)
    assert [a for a in view.asked if not a.startswith(("data:", "blob:")) and a != own] == []
    assert len(page.screenshot()) > 20_000


def test_nothing_in_the_data_is_taken_for_markup(made: Made, look: Any) -> None:
    view = look(address(made))
    view.page.wait_for_timeout(200)
    assert view.page.evaluate("window.harmed") is None
    assert HOSTILE in view.page.inner_text("#configuration")
    assert "onerror" in view.page.inner_text("#problems")


def test_curves_show_the_means_of_the_runs(made: Made, look: Any) -> None:
    view = look(address(made))
    titles = {"BigFish": "bigfish", "StarPilot": "starpilot"}
    names = {"PPO": "ppo", "PPG": "ppg", "DCPG": "dcpg"}
    for value, column in (("test", "test_return"), ("train", "train_return")):
        view.press("curves", value)
        charts = view.charts("curves")
        assert [chart["title"] for chart in charts] == list(titles)
        for chart in charts:
            shown = {line["name"].removesuffix(", training"): line for line in chart["lines"]}
            assert set(shown) >= set(names)
            for name, method in names.items():
                assert shown[name]["y"] == pytest.approx(made.mean(method, titles[chart["title"]], column))
                assert shown[name]["x"] == [128, 1024, 2048]
            assert chart["bands"] == 3  # one a method with two seeds
    view.press("curves", "gap")
    for chart in view.charts("curves"):
        train, test = (made.mean("dcpg", titles[chart["title"]], f"{s}_return") for s in ("train", "test"))
        (line,) = [line for line in chart["lines"] if line["name"] == "DCPG"]
        assert line["y"] == pytest.approx([a - b for a, b in zip(train, test, strict=True)])


def test_a_method_is_hidden_everywhere_at_once_and_stays_so(made: Made, look: Any) -> None:
    view = look(address(made))
    view.page.click('#curves [data-method="ppg"]')
    for section in ("curves", "gap", "statistics"):
        for chart in view.charts(section):
            assert "PPG" not in [line["name"] for line in chart["lines"]], section
    assert view.page.get_attribute('#statistics [data-method="ppg"]', "aria-pressed") == "false"
    view.page.reload()
    assert view.page.get_attribute('#curves [data-method="ppg"]', "aria-pressed") == "false"
    view.page.click('#statistics [data-method="ppg"]')
    assert all("PPG" in [line["name"] for line in chart["lines"]] for chart in view.charts("curves"))
    assert view.errors == []


def test_headline_scores_and_their_measures(made: Made, look: Any) -> None:
    view = look(address(made))
    shown = made.data["headline"]["normalised"]["test"]
    finals = {m: {g: made.mean(m, g, "test_return")[-1] for g in GAMES} for m in METHODS}
    for method in METHODS:
        expected = 100 * statistics.fmean(finals[method][g] / finals["ppo"][g] for g in GAMES)
        assert shown[method]["value"] == pytest.approx(expected)
        assert shown[method]["low"] <= expected <= shown[method]["high"]
    (chart,) = view.charts("overview")
    assert chart["lines"][0]["x"] == pytest.approx([shown[m]["value"] for m in METHODS])
    assert chart["lines"][1]["name"] == "the paper, 25M steps"
    assert chart["lines"][1]["x"] == pytest.approx(
        [100, 50 * (16.4 / 3.4 + 44.8 / 25.8), 50 * (23.1 / 3.4 + 46.1 / 25.8)]
    )
    text = view.page.inner_text("#overview")
    assert f"{shown['dcpg']['value']:.1f}" in text
    assert "1 unfinished" in text
    view.press("measure", "iqm")
    (chart,) = view.charts("overview")
    minmax = made.data["headline"]["minmax"]
    assert chart["lines"][0]["x"] == pytest.approx([minmax[m]["iqm"]["value"] for m in METHODS])


def test_values_stiffness_and_algorithm_follow_their_controls(made: Made, look: Any) -> None:
    view = look(address(made))
    view.page.select_option('[data-control="value-method"]', "ppg")
    view.press("value-split", "test")
    for chart, game in zip(view.charts("values"), GAMES, strict=True):
        by_name = {line["name"]: line["y"] for line in chart["lines"]}
        assert by_name["predicted"] == pytest.approx(made.mean("ppg", game, "test_predicted_value"))
        assert by_name["true"] == pytest.approx(made.mean("ppg", game, "test_true_value"))
    measured = made.data["stiffness"]["training"][0]
    view.press("stiffness", "sign_free")
    (chart,) = view.charts("stiffness")
    assert chart["lines"][0]["y"] == measured["sign_free"]
    view.page.select_option('[data-control="algorithm"]', "ppo")
    assert view.page.inner_text("#algorithm pre").startswith("ppo:")
    assert "J_V" in view.page.inner_text("#algorithm pre")


def test_the_map_of_levels(made: Made, look: Any) -> None:
    view = look(address(made))
    page = view.page
    page.select_option('[data-control="level-game"]', "starpilot")
    page.select_option('[data-control="level-method"]', "ddcpg")
    tiles = page.eval_on_selector_all(".tile", "nodes => nodes.map((n) => Number(n.dataset.level))")
    assert tiles == list(range(8))
    assert page.eval_on_selector_all(".tile.nobody", "nodes => nodes.length") == 1  # level 7; another method solves 0
    assert "data:image/webp" in page.evaluate("document.querySelector('.tile').style.backgroundImage")
    page.click('.tile[data-level="5"]')
    assert "Level 5" in page.inner_text("#levels")
    assert "DDCPG" in page.inner_text("#levels table")
    view.press("level-order", "return")
    order = page.eval_on_selector_all(".tile", "nodes => nodes.map((n) => Number(n.dataset.level))")
    assert order == [0, 7, 1, 2, 3, 4, 5, 6]
    assert "900" in page.inner_text("#levels .row")
    view.press("level-look", "colours")
    colours = set(page.eval_on_selector_all(".tile", "nodes => nodes.map((n) => getComputedStyle(n).backgroundColor)"))
    assert len(colours) == 7
    assert view.errors == []


def test_the_theme_button_overrules_the_system(made: Made, look: Any) -> None:
    page = look(address(made), WIDE, "light").page
    seen = []
    for _ in range(3):
        page.click("#theme")
        seen.append(page.evaluate("getComputedStyle(document.documentElement).colorScheme"))
    assert seen == ["light", "dark", "light"]  # light, dark, and as the system has it


def test_the_video_plays(made: Made, look: Any) -> None:
    page = look(address(made)).page
    until(page, "document.querySelector('video').readyState >= 1")
    assert page.evaluate("document.querySelector('video').duration") == pytest.approx(25 / video.FPS, abs=0.1)
    assert page.evaluate("document.querySelector('video').videoWidth") == 64


def test_missing_things_have_commands(made: Made, look: Any) -> None:
    text = look(address(made)).page.text_content("#missing")
    assert f"dcpg resume {made.folder.parent}/runs/starpilot-ddcpg-0" in text
    assert "dcpg train ddcpg --game bigfish --preset tiny --seed 1" in text
    assert "dcpg train ucb-drac --game bigfish" in text


# -- the server


def ask(port: int, path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host if host is not None else f"127.0.0.1:{port}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_only_what_was_generated_is_served(tmp_path: Path) -> None:
    run = synthetic.some(tmp_path / "runs" / "one", "ppo")
    out = tmp_path / "out"
    report = make([run.path], out, pictures=False)
    (out / "secret.txt").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    (out / "tables" / "link.csv").symlink_to(tmp_path / "secret.txt")
    shelf = Shelf()
    shelf.put(out, report)
    found = server(shelf, 0)
    host, port = found.server_address[:2]
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        assert host == "127.0.0.1"
        assert ask(port, "/") == (200, (out / "report.html").read_bytes())
        assert ask(port, "/tables/table1.csv") == (200, (out / "tables" / "table1.csv").read_bytes())
        assert ask(port, "/version") == (200, report.version.encode())
        assert ask(port, "/report.html?again=1")[0] == 200
        assert ask(port, "/report.html", "HEAD") == (200, b"")
        for path in (
            "/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/tables/../secret.txt", "/tables/../../secret.txt",
            "//secret.txt", "/tables/link.csv", "/tables/", "/..%2fsecret.txt", str(tmp_path / "secret.txt"),
            f"/{tmp_path}/secret.txt", "/runs/one/config.json", "/\\..\\secret.txt", "secret.txt",
        ):  # fmt: skip
            status, body = ask(port, path)
            assert status == 404, path
            assert b"secret" not in body, path
        assert ask(port, "/", host="evil.example:80")[0] == 403
        assert ask(port, "/", host="")[0] == 403
        assert ask(port, "/", "POST")[0] == 501
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


def test_a_port_in_use_is_one_sentence() -> None:
    first = server(Shelf(), 0)
    try:
        with pytest.raises(BadInput, match="choose another --port"):
            server(Shelf(), first.server_address[1])
    finally:
        first.server_close()


def test_the_watched_page_refreshes_itself(tmp_path: Path, look: Any) -> None:
    config = synthetic.configuration("ppo", "bigfish", 0, preset="tiny")
    rows = synthetic.rows_of(config, random.Random(0), rollouts=(1, 8, 16))
    run = synthetic.write(tmp_path / "runs" / "one", config, rows[:2])
    other = synthetic.some(tmp_path / "runs" / "two", "dcpg", "bigfish")
    out, stop, said, ready = tmp_path / "out", threading.Event(), list[str](), threading.Event()

    def say(text: str) -> None:
        said.append(text)
        ready.set()

    def again(pictures: bool) -> Any:
        return make([tmp_path / "runs"], out, pictures=False)

    thread = threading.Thread(target=watch, args=([tmp_path / "runs"], out, 0, 0.2, again, say, stop), daemon=True)
    thread.start()
    try:
        assert ready.wait(60)
        view = look(said[0].split()[0])
        page = view.page
        assert page.evaluate("dcpgReport.data.runs") == {"finished": 1, "unfinished": 1, "problems": 0}
        view.press("curves", "train")
        with open(run / "eval.jsonl", "a") as file:
            file.write(json.dumps(rows[2]) + "\n")
        until(page, "window.dcpgReport && dcpgReport.data.runs.finished === 2")
        assert page.get_attribute('[data-control="curves"] [data-value="train"]', "aria-pressed") == "true"
        assert view.charts("curves")[0]["lines"][0]["y"] == [row["train_return"] for row in rows]
        (other.path / "eval.jsonl").write_text("torn")  # what is wrong now is shown on the page that comes next
        until(page, "window.dcpgReport && dcpgReport.data.runs.problems > 0")
        assert view.errors == []
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()


def test_the_yardstick_stands_beside_ppo_of_the_papers_sizes_alone(tmp_path: Path) -> None:
    """However long the run: published returns at the steps that it has reached, its own interpolated."""
    for name, method, more in (("ppo", "ppo", {}), ("dcpg", "dcpg", {}), ("small", "ppo", {"network.features": 64})):
        config = synthetic.configuration(method, "starpilot", 3, steps=600_000, settings=more)
        rows = synthetic.rows_of(config, random.Random(5), rollouts=(1, 11, 21, 31, 36))
        synthetic.write(tmp_path / "runs" / name, config, rows)
    make([tmp_path / "runs"], tmp_path / "out", pictures=False)
    (found,) = json.loads((tmp_path / "out" / "report.json").read_text())["yardstick"]
    assert (found["game"], found["seed"]) == ("StarPilot", 3)
    published = [(p["steps"], p["published"]["train"], p["published"]["test"]) for p in found["points"]]
    assert published == [(100_000, 2.3, 2.34), (250_000, 3.22, 3.03), (500_000, 4.45, 3.8)]
    row = [json.loads(line) for line in (tmp_path / "runs" / "ppo" / "eval.jsonl").read_text().splitlines()]
    share = (100_000 - row[0]["steps"]) / (row[1]["steps"] - row[0]["steps"])
    expected = row[0]["test_return"] * (1 - share) + row[1]["test_return"] * share
    assert found["points"][0]["own"]["test"] == pytest.approx(expected)
