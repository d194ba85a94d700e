"""Every line, band and bar of the figures, against plain sums over the numbers that the runs were made of."""

from __future__ import annotations

from typing import Any

import pytest

from dcpg.methods import METHODS
from tests.report.grid import (
    COUNTS,
    DELAY,
    FIGURES,
    FIVE,
    GAMES,
    LEVELS,
    NAMES,
    RANGES,
    TITLES,
    Built,
    deviation,
    mean,
    papers,
)
from tests.synthetic import PAPER_STEPS


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_a_picture_and_a_page(grid: Built, name: str) -> None:
    from PIL import Image

    pdf = (grid.out / "figures" / f"{name}.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert pdf.rstrip().endswith(b"%%EOF")
    with Image.open(grid.out / "figures" / f"{name}.png") as picture:
        width, height = picture.size
        assert width >= 700
        assert height >= 200
        colours = picture.convert("RGB").getcolors(width * height)
    assert colours is not None
    assert len(colours) > 100
    assert max(n for n, _ in colours) < 0.98 * width * height
    assert grid.plotted[name]["title"]


def lines_of(panel: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The curves by their names in the legend; stars are the paper's."""
    return {line["label"]: line for line in panel["lines"] if line["marker"] != "*"}


def assert_curve(
    panel: dict[str, Any], place: int, label: str, curve: tuple[list[int], list[float], list[float]]
) -> None:
    """The `place`-th line of a panel and its band."""
    steps, means, stds = curve
    assert_line(panel, place, label, curve)
    band = panel["bands"][place]
    assert list(band) == steps
    assert [low for low, _ in band.values()] == pytest.approx([m - s for m, s in zip(means, stds, strict=True)])
    assert [high for _, high in band.values()] == pytest.approx([m + s for m, s in zip(means, stds, strict=True)])


def assert_line(
    panel: dict[str, Any], place: int, label: str, curve: tuple[list[int], list[float], list[float]]
) -> None:
    steps, means, _ = curve
    line = lines_of(panel)[label]
    assert list(lines_of(panel)).index(label) == place
    assert line["x"] == steps
    assert line["y"] == pytest.approx(means)


@pytest.mark.parametrize(
    ("name", "games", "methods", "split"),
    [
        ("figure5", ["bigfish", "chaser", "climber", "dodgeball", "miner", "starpilot"], FIVE, "test"),
        ("figure6", ["bigfish", "chaser", "climber", "dodgeball"], DELAY, "test"),
        ("figure11", GAMES, FIVE, "train"),
        ("figure12", GAMES, FIVE, "test"),
        ("figure13", GAMES, DELAY, "train"),
        ("figure14", GAMES, DELAY, "test"),
    ],
)
def test_returns_over_training(grid: Built, name: str, games: list[str], methods: list[str], split: str) -> None:
    shown, printed = grid.plotted[name], papers()
    assert [panel["title"] for panel in shown["panels"]] == [TITLES[game] for game in games]
    assert [name for name in shown["legend"] if name != "the paper"] == [NAMES[m] for m in methods]
    assert shown["legend"].count("the paper") == 1
    assert shown["legend"][-1] == "the paper"
    assert f"return on {LEVELS[split]}, 3 seeds, 24,985,600 steps" in shown["title"]
    for panel, game in zip(shown["panels"], games, strict=True):
        assert list(lines_of(panel)) == [NAMES[m] for m in methods]
        for place, method in enumerate(methods):
            assert_curve(panel, place, NAMES[method], grid.over_training(method, game, f"{split}_return"))
        colours = [line["colour"] for line in lines_of(panel).values()]
        assert len(set(colours)) == len(methods)
        stars = [line for line in panel["lines"] if line["marker"] == "*"]
        wanted = [printed[split, "return", game, m][0] for m in methods if (split, "return", game, m) in printed]
        assert [star["y"] for star in stars] == [[value] for value in wanted]
        assert all((star["x"], star["label"]) == ([25_000_000], "the paper") for star in stars)


def assert_values(grid: Built, panel: dict[str, Any], method: str, game: str) -> None:
    wanted = {"true": "train_true_value", "predicted": "train_predicted_value"}
    if method == "ppg+ar":
        wanted["true, the method's own discount"] = "train_true_value_own_gamma"
    assert list(lines_of(panel)) == list(wanted)
    for place, (label, column) in enumerate(wanted.items()):
        assert_line(panel, place, label, grid.over_training(method, game, column))
    assert panel["bands"] == []
    assert [line["style"] for line in lines_of(panel).values()] == ["-", "-", ":"][: len(wanted)]
    true, predicted, *own = [line["colour"] for line in lines_of(panel).values()]
    assert true != predicted
    assert own in ([], [true])


@pytest.mark.parametrize(
    ("name", "games", "method"),
    [
        ("figure4", ["bigfish", "chaser", "climber", "dodgeball"], "dcpg"),
        ("figure8", GAMES, "dcpg"),
        ("figure9", GAMES, "ppg+dr"),
        ("figure10", GAMES, "ppg+ar"),
    ],
)
def test_values_over_training(grid: Built, name: str, games: list[str], method: str) -> None:
    shown = grid.plotted[name]
    assert [panel["title"] for panel in shown["panels"]] == [TITLES[game] for game in games]
    assert f"values of {NAMES[method]}, 3 seeds" in shown["title"]
    assert shown["panels"][0]["ylabel"] == "value"
    for panel, game in zip(shown["panels"], games, strict=True):
        assert_values(grid, panel, method, game)


def test_figure_3(grid: Built) -> None:
    shown, methods = grid.plotted["figure3"], ["ppg", "ppg+dr", "ppg+ar"]
    assert "BigFish" in shown["title"]
    assert [panel["title"] for panel in shown["panels"]] == [
        "(a) BigFish, training levels", "(a) BigFish, unseen levels", "(b) PPG+DR, BigFish", "(b) PPG+AR, BigFish",
    ]  # fmt: skip
    assert shown["legend"] == ["PPG", "PPG+DR", "PPG+AR", "true", "predicted", "true, the method's own discount"]
    for panel, split in zip(shown["panels"][:2], ("train", "test"), strict=True):
        assert list(lines_of(panel)) == [NAMES[m] for m in methods]
        assert panel["ylim"] == shown["panels"][0]["ylim"]
        highest = max(y for p in shown["panels"][:2] for line in p["lines"] for y in line["y"])
        assert panel["ylim"][1] == 33 if highest <= 33 else panel["ylim"][1] > highest  # as in the paper, nothing cut
        for place, method in enumerate(methods):
            assert_line(panel, place, NAMES[method], grid.over_training(method, "bigfish", f"{split}_return"))
    for panel, method in zip(shown["panels"][2:], methods[1:], strict=True):
        assert_values(grid, panel, method, "bigfish")


@pytest.mark.parametrize(
    ("name", "games"),
    [
        ("figure2", ["bigfish", "chaser", "climber", "starpilot"]),
        ("figure7", ["bigfish", "chaser", "climber", "maze", "starpilot"]),
    ],
)
def test_stiffness_against_the_number_of_levels(grid: Built, name: str, games: list[str]) -> None:
    shown = grid.plotted[name]
    assert [panel["title"] for panel in shown["panels"]] == [TITLES[game] for game in games]
    assert "2 seeds, 7,995,392 steps" in shown["title"]
    for panel, game in zip(shown["panels"], games, strict=True):
        assert (panel["xscale"], panel["xlabel"]) == ("log", "training levels")
        assert panel["xticks"] == [1, 2, 10, 50, 200]
        assert panel["ylim"][0] == 0 or name == "figure7"
        methods = ["dcpg"] if game == "maze" else ["ppg", "dcpg"]
        assert list(lines_of(panel)) == [NAMES[m] for m in methods]
        for place, method in enumerate(methods):
            found: dict[int, list[float]] = {}
            for run in grid.stiff:
                if (run.method, run.game) == (method, game):
                    measured = [row["stiffness"] for row in run.metrics if "stiffness" in row]
                    found.setdefault(run.levels, []).append(mean(measured))
            counts = sorted(found)
            assert counts == ([1, 10, 100] if game == "maze" else list(COUNTS))
            stds = [deviation(found[n]) if len(found[n]) > 1 else 0.0 for n in counts]
            assert_curve(panel, place, NAMES[method], (counts, [mean(found[n]) for n in counts], stds))


def middle_half(values: list[float]) -> float:
    cut = len(values) // 4
    return mean(sorted(values)[cut : len(values) - cut])


def middle(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def test_figure_15(grid: Built) -> None:
    methods, printed = ["ppo", "ppg", "dcpg", "ddcpg"], papers()
    panels = grid.plotted["figure15"]["panels"]
    assert "3 seeds, 24,985,600 steps; stars: the paper" in grid.plotted["figure15"]["title"]
    assert [panel["title"] for panel in panels] == ["Median", "IQM", "Mean", "Optimality gap"]
    assert panels[0]["rows"] == [NAMES[m] for m in methods]
    for place, method in enumerate(methods):
        scores = grid.normalised(method)
        means, every = [mean(s) for s in scores.values()], [s for of_game in scores.values() for s in of_game]
        wanted = [middle(means), middle_half(every), mean(means), 1 - mean([min(s, 1.0) for s in every])]
        for panel, value in zip(panels, wanted, strict=True):
            assert_bar(panel, place, value)
        of_paper = [
            (printed["test", "return", game, method][0] - low) / (high - low) for game, (low, high) in RANGES.items()
        ]
        wanted = [middle(of_paper), middle_half(of_paper), mean(of_paper), 1 - mean([min(s, 1.0) for s in of_paper])]
        for panel, value in zip(panels, wanted, strict=True):
            star = [line for line in panel["lines"] if line["marker"] == "*"][place]
            assert star["x"] == [pytest.approx(value)]
            assert star["y"] == [place]


def assert_bar(panel: dict[str, Any], place: int, value: float) -> None:
    """The bar is an interval around the black mark of the value."""
    low, high = panel["bars"][place]
    mark = [line for line in panel["lines"] if line["colour"] == "black" and len(line["x"]) == 2][place]
    assert mark["x"] == pytest.approx([value, value])
    assert mean(mark["y"]) == pytest.approx(place)
    assert low < value < high
    assert high - low < 0.3


def test_figure_16(grid: Built) -> None:
    (panel,) = grid.plotted["figure16"]["panels"]
    assert panel["rows"] == ["DCPG", "DDCPG"]
    assert panel["xlabel"] == "P(better than PPG) on unseen levels"
    for place, method in enumerate(("dcpg", "ddcpg")):
        chances = []
        for game in GAMES:
            pairs = [
                (x, y) for x in grid.finals(method, game, "test") for y in grid.finals("ppg", game, "test")
            ]  # fmt: skip
            chances.append(mean([1.0 if x > y else 0.5 if x == y else 0.0 for x, y in pairs]))
        assert_bar(panel, place, mean(chances))


def test_profiles(grid: Built) -> None:
    (panel,) = grid.plotted["profiles"]["panels"]
    scores = {m: [s for of_game in grid.normalised(m).values() for s in of_game] for m in METHODS}
    everything = [s for of_method in scores.values() for s in of_method]
    assert [line["label"] for line in panel["lines"]] == [NAMES[m] for m in METHODS]
    for place, (method, line) in enumerate(zip(METHODS, panel["lines"], strict=True)):
        assert (line["x"][0], line["x"][-1]) == pytest.approx((min(everything), max(everything)))
        # a threshold on a score itself may fall on either side of it by rounding
        for x, y in list(zip(line["x"], line["y"], strict=True))[1:-1]:
            assert y == pytest.approx(mean([float(s > x) for s in scores[method]]))
        for (low, high), y in zip(panel["bands"][place].values(), line["y"], strict=True):
            assert low - 1e-12 <= y <= high + 1e-12


def test_sample_efficiency(grid: Built) -> None:
    (panel,) = grid.plotted["sample-efficiency"]["panels"]
    assert [line["label"] for line in panel["lines"]] == [NAMES[m] for m in METHODS]
    for place, (method, line) in enumerate(zip(METHODS, panel["lines"], strict=True)):
        assert line["x"] == [16_384, 501 * 16_384, 1001 * 16_384, PAPER_STEPS]
        wanted = [middle_half([s for g in grid.normalised(method, row).values() for s in g]) for row in range(4)]
        assert line["y"] == pytest.approx(wanted)
        for (low, high), y in zip(panel["bands"][place].values(), wanted, strict=True):
            assert low < y < high
