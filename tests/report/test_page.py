"""The page in a real browser."""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser

from dcpg.report import page as making
from dcpg.report.write import write_report
from dcpg.runs import video
from tests import synthetic
from tests.browser import PHONE, WIDE, until
from tests.report.grid import Built

METHODS, GAMES, SEEDS = ("ppo", "ppg", "dcpg"), ("bigfish", "starpilot"), (0, 1)
WINDOWS = [(size, scheme) for size in (WIDE, PHONE) for scheme in ("light", "dark")]
HOSTILE = "</script><script>window.harmed=1</script><img src=x onerror=window.harmed=1>"


@dataclass
class Made:
    """A report and the runs it was made from."""

    folder: Path
    data: dict[str, Any]
    runs: dict[tuple[str, str, int], synthetic.Run]

    def mean(self, method: str, game: str, column: str) -> list[float]:
        """The mean over seeds at each evaluation."""
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
    report = write_report([top / "runs"], top / "out", pictures=False)
    assert [p.path for p in report.problems] == [torn]
    return Made(top / "out", json.loads((top / "out" / "report.json").read_text()), runs)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return build(tmp_path_factory.mktemp("page"))


def address(made: Made) -> str:
    return (made.folder / "report.html").as_uri()


@pytest.mark.parametrize(("size", "scheme"), WINDOWS)
def test_it_renders_on_every_screen(made: Made, look: Any, size: tuple[int, int], scheme: str) -> None:
    view = look(address(made), size, scheme)
    page = view.page
    sections = page.eval_on_selector_all("section", "nodes => nodes.map((n) => n.id)")
    assert sections == [
        "overview", "curves", "gap", "values", "stiffness", "statistics", "levels", "video", "leads", "claims",
        "tables", "algorithm", "configuration", "missing", "problems",
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
    assert [a for a in view.requests if not a.startswith(("data:", "blob:")) and a != own] == []
    assert len(page.screenshot()) > 20_000


@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_no_chart_of_many_methods_is_cut_off(grid: Built, look: Any, size: tuple[int, int]) -> None:
    view = look((grid.out / "report.html").as_uri(), size)
    for section in ("overview", "gap", "statistics"):
        assert len(view.charts(section)) == (3 if section == "statistics" else 1)
        beyond = view.page.eval_on_selector_all(
            f"#{section} .chart",
            "nodes => nodes.map((n) => n.querySelector('.main-svg').getBoundingClientRect().bottom"
            " - n.getBoundingClientRect().bottom)",
        )
        assert max(beyond) < 1, section


def test_charts_in_view_draw_themselves(made: Made, look: Any) -> None:
    view = look(address(made))
    until(view.page, "document.querySelector('#overview .chart .point') !== null")
    assert view.errors == []


def test_a_browser_that_cannot_open_the_library_shows_the_rest(made: Made, chromium: Browser) -> None:
    errors: list[str] = []
    page = chromium.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.add_init_script("delete window.DecompressionStream")
    page.goto(address(made))
    assert page.inner_text("main > p").startswith("This browser is too old to draw the charts")
    assert not any(chart.is_visible() for chart in page.query_selector_all(".chart"))
    assert made.data["tables"][0]["title"] in page.inner_text("#tables")
    assert page.is_visible("#tables td")
    page.click("#theme")
    page.click('#curves [data-method="ppg"]')
    page.close()
    assert errors == []


def test_the_size_and_bytes_of_the_file(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *given: "2026-01-01 00:00")
    first = making.page(made.data)  # which has no pictures
    assert len(first.encode()) <= 2.15e6
    making.chart_library.cache_clear()
    assert making.page(made.data) == first


def test_nothing_in_the_data_is_taken_for_markup(made: Made, look: Any) -> None:
    view = look(address(made))
    view.page.wait_for_timeout(200)
    assert view.page.evaluate("window.harmed") is None
    assert HOSTILE in view.page.inner_text("#configuration")
    assert "onerror" in view.page.inner_text("#problems")


def test_names_in_charts_are_text(tmp_path: Path, look: Any) -> None:
    """plotly takes some HTML for markup, and %{...} for a place to fill in; other names would turn a line around."""
    words = '<a href="https://example.org">x</a><b>y</b><br><img src=x onerror=alert(1)>&amp;%{x}%{meta}'
    for seed in (0, 1):
        for name, plugin in (("<b>", True), ("", False)):
            path = tmp_path / "runs" / f"{name}{seed}"
            synthetic.of_a_stranger(path, f"{words}\u202e\x1b[1m", seed, plugin=plugin)
    write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    view = look((tmp_path / "out" / "report.html").as_uri())
    dialogs: list[str] = []
    view.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    view.page.evaluate("dcpgReport.drawAll()")
    pointed = """() => document.querySelectorAll(".chart").forEach((node) => Plotly.Fx.hover(node, node.data.flatMap(
        (t, curveNumber) => (t.meta === "band" ? [] : [{ curveNumber, pointNumber: t.z ? [0, 1] : 0 }]))))"""
    view.page.evaluate(pointed)
    until(view.page, "document.querySelectorAll('.hoverlayer text').length > 0")
    shown = f"{words}\\u202e\\u001b[1m"
    title = f"m{shown} [gamma={shown}] [init]"
    texts = view.page.eval_on_selector_all("svg text", "nodes => nodes.map((n) => n.textContent)")
    assert {shown, title} <= set(texts)
    assert any(text.startswith(f"{title}, {shown}: ") for text in texts)  # below the pointer
    assert title in view.page.inner_text("#curves .chips")
    assert shown in view.page.text_content("#configuration table:last-of-type")
    assert view.page.query_selector_all("main a[href*=example], main b:not(.pill b), main img, svg a") == []
    styled = "nodes => nodes.filter((n) => n.style.fontWeight === 'bold' || n.classList.contains('line')).length"
    assert view.page.eval_on_selector_all("svg tspan", styled) == 0
    assert not any("\u202e" in text or "\x1b" in text for text in [*texts, view.page.text_content("body")])
    assert dialogs == []
    assert view.errors == []


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
            assert not [line for line in chart["lines"] if str(line["name"]).startswith("PPG")], section
    assert view.page.get_attribute('#statistics [data-method="ppg"]', "aria-pressed") == "false"
    view.page.reload()
    assert view.page.get_attribute('#curves [data-method="ppg"]', "aria-pressed") == "false"
    view.page.click('#statistics [data-method="ppg"]')
    assert all("PPG" in [line["name"] for line in chart["lines"]] for chart in view.charts("curves"))
    assert "PPG, 2 seeds" in [line["name"] for line in view.charts("statistics")[0]["lines"]]
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
    assert len(chart["lines"]) == 1  # the runs are not like the paper's
    text = view.page.inner_text("#overview")
    assert f"{shown['dcpg']['value']:.1f}" in text
    assert "1 unfinished" in text
    view.press("measure", "iqm")
    (chart,) = view.charts("overview")
    minmax = made.data["headline"]["minmax"]
    assert chart["lines"][0]["x"] == pytest.approx([minmax[m]["iqm"]["value"] for m in METHODS])
    assert not view.page.is_visible('[data-control="headline-split"]')  # min-max scores are of unseen levels alone


def test_the_page_says_how_the_runs_differ_from_the_papers_and_what_became_of_its_claims(made: Made, look: Any) -> None:
    view = look(address(made))
    text = view.page.inner_text("#overview")
    assert "env.frame_size=32 instead of 64" in text
    assert "the paper's own numbers stand beside them in Claims alone" in text
    assert "(2)" in text  # every interval with its number of seeds
    claims = made.data["claims"]
    assert view.page.inner_text("#claims .pills").split()[-7:-6] == [str(len(claims))]
    view.press("claims", "all")
    assert len(view.page.query_selector_all("#claims tbody tr")) == len(claims)
    assert "DCPG has a higher PPO-normalised score than PPG on unseen levels" in view.page.inner_text("#claims")
    assert "Needs 3 seeds." in view.page.inner_text("#claims")
    view.page.set_viewport_size({"width": 1440, "height": 900})
    wide, room = view.page.eval_on_selector("#claims .scroll", "n => [n.scrollWidth, n.clientWidth]")
    assert wide <= room  # the last column needs no scrolling


def test_the_papers_figures_stand_beside_runs_of_its_setting(tmp_path: Path, look: Any) -> None:
    for game in GAMES:
        synthetic.some(tmp_path / "runs" / game, "ppo", game, 0, preset="paper")
    write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    view = look((tmp_path / "out" / "report.html").as_uri(), PHONE)
    (chart,) = view.charts("overview")
    below, end = view.page.eval_on_selector(
        "#overview .chart", "n => [n.querySelector('.legend'), n].map((one) => one.getBoundingClientRect().bottom)"
    )
    assert below <= end  # both entries of the legend are seen on a telephone
    assert end - view.page.eval_on_selector("#overview .chart", "n => n.getBoundingClientRect().top") < 200  # one row
    assert (chart["lines"][1]["name"], chart["lines"][1]["x"]) == ("the paper, 25M steps", [100])
    view.press("measure", "iqm")
    (chart,) = view.charts("overview")
    means = [(3.4 - 1) / 39, (25.8 - 2.5) / 61.5]
    assert chart["lines"][1]["x"] == pytest.approx([statistics.fmean(means)])
    text = view.page.inner_text("#overview")
    assert "none: one seed" in text
    assert "instead of" not in text
    assert "needs finished runs of two methods" in view.page.inner_text("#statistics")


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


def test_with_very_many_variants_the_page_says_what_is_compared(
    tmp_path: Path, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dcpg.report.page_data.MOST_PAIRED", 2)
    monkeypatch.setattr("dcpg.report.missing.MOST_COMMANDS", 20)
    synthetic.few(tmp_path / "runs", ("ppo", "daac", "dcpg"), (0, 1))
    write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    view = look((tmp_path / "out" / "report.html").as_uri())
    text = view.page.text_content("body")
    assert "With so many methods and variants (3), each is compared with PPO, DCPG only." in text
    total = 3 * (16 * 10 - 2 * 2)
    assert f"these runs have 2 and 2 ({total})" in text
    assert f"and {total - 12} more; report.json has the first 20." in text
    (chances,) = [chart["lines"][0] for chart in view.charts("statistics") if "beats the column" in chart["title"]]
    assert (chances["x"], chances["y"]) == (["PPO", "DCPG"], ["PPO", "DAAC", "DCPG"])
    assert [[value is None for value in row] for row in chances["z"]] == [[True, False], [False, False], [False, True]]
    assert view.errors == []
