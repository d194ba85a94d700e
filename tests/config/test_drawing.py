"""Figure 1 of the paper for every method, drawn from its declaration."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor
from typer.testing import CliRunner

from dcpg.cli.app import app
from dcpg.config.drawing import LETTER, drawing, drawing_of, steps
from dcpg.config.resolve import resolve
from dcpg.core.networks import LinearHead
from dcpg.errors import BadInput
from dcpg.methods import J_V, METHODS, Batch, Method, Optimise, Outputs, Target, Tau, policy_head, value_head
from tests.core.test_objectives import REACHES
from tests.docs.pages import DOCS, section

NAMESPACE = "{http://www.w3.org/2000/svg}"


def texts_of(svg: str) -> list[tuple[str, str, float, float, float]]:
    """(class, text, left, right, baseline) of every text, by the widths that the drawing counts with."""
    found = []
    for element in ET.fromstring(svg).iter(f"{NAMESPACE}text"):
        text, style = "".join(element.itertext()), element.get("class", "")
        x, width = float(element.get("x", "")), len(text) * LETTER
        left = x if "left" in style else x - width / 2
        found.append((style, text, left, left + width, float(element.get("y", ""))))
    return found


@pytest.mark.parametrize("name", METHODS)
def test_the_picture_on_a_methods_page_is_todays(name: str) -> None:
    svg = drawing(resolve(name, "bigfish"))
    path = DOCS / "images" / f"method-{name}.svg"
    assert path.read_text() == svg, f"dcpg explain {name} --draw docs/images/{path.name}"
    page = section(DOCS / "methods" / f"{name}.md", "Networks")
    assert f"](../images/{path.name})" in page
    assert ("auxiliary phase (red)" in page) == bool(resolve(name, "bigfish").declared().auxiliary_phase)


@pytest.mark.parametrize("name", METHODS)
def test_a_drawing_has_every_term_where_its_gradient_goes(name: str) -> None:
    method = resolve(name, "bigfish").declared()
    assert [(step.adam, step.phase) for step in steps(method)] == [
        (adam, phase)
        for phase, lines in (("policy", method.policy_phase), ("auxiliary", method.auxiliary_phase))
        for line in lines
        for adam in line.adams
    ]
    for step in steps(method):
        for encoder, heads in method.networks.items():
            for term in method.adams[step.adam]:
                reached = REACHES[name][term]
                for head in heads:
                    assert (term in step.terms.get(head, ({}, True))[0]) == (head in reached)
                bare = encoder in reached and not reached & set(heads)
                assert (term in step.encoders.get(encoder, {})) == bare


@pytest.mark.parametrize("name", METHODS)
def test_no_two_texts_touch_and_all_are_inside(name: str) -> None:
    svg = drawing(resolve(name, "bigfish"))
    texts = texts_of(svg)
    _, _, width, height = map(float, ET.fromstring(svg).get("viewBox", "").split())
    assert all(left > 0 and right < width and 12 < y < height for _, _, left, right, y in texts)
    for k, (_, one, left, right, y) in enumerate(texts):
        for _, other, left2, right2, y2 in texts[k + 1 :]:
            assert right <= left2 or right2 <= left or abs(y - y2) >= 14, (one, other)


def test_ddcpg_is_drawn_as_in_the_paper() -> None:
    texts = {text: style for style, text, *_ in texts_of(drawing(resolve("ddcpg", "bigfish")))}
    assert {text for text, style in texts.items() if style == "policy"} == {"J_pi - 0.01 H", "C_V"}
    assert {text for text, style in texts.items() if style == "auxiliary"} == {"C_pi", "J_V", "J_f"}
    assert {
        "πθ(a | s)",
        "Vθ(s)",
        "fθ(s, a, s')",
        "s, s'",
        "encoder",
        "a",
        "after 32 rollouts, 6 epochs",
    } <= texts.keys()


def test_a_drawing_follows_the_settings() -> None:
    settings = {"algorithm.two_steps": True, "algorithm.N_pi": 8, "algorithm.beta_V": 0.25}
    texts = [text for _, text, *_ in texts_of(drawing(resolve("separate-dcpg", "bigfish", settings=settings)))]
    assert texts.count("then") == 2
    assert {"after 8 rollouts, 6 epochs", "0.25 C_V"} <= set(texts)
    first = {"algorithm.N_pi_first": "4,8"}
    assert "after 4, 8, 32, ... rollouts, 6 epochs" in drawing(resolve("dcpg", "bigfish", settings=first))
    assert "s, g(s)" in drawing(resolve("dcpg", "bigfish", settings={"augment": "crop"}))


def colour_head(features: int, actions: int, hidden: int) -> LinearHead:
    return LinearHead(features, 3, 1.0)


def J_colour(out: Outputs, batch: Batch) -> Tensor:
    return out.head("colour").square().sum(1)


def own_method() -> Method:
    """A head and a term that the package does not know, on encoders with names of their own."""
    terms = {"J_colour": (2.0, J_colour), "J_V": (1.0, J_V)}
    return Method(
        networks={"eye": {"policy": policy_head, "colour": colour_head}, "ear<": {"value": value_head}},
        targets={"value": Target(0.99, 0.95)},
        advantages="value",
        policy_phase=(Optimise("own", Tau(2), terms, epochs=4),),
    )


def test_a_method_of_your_own_is_drawn_too() -> None:
    (step,) = steps(own_method())
    assert {head: list(terms) for head, (terms, _) in step.terms.items()} == {"colour": ["J_colour"], "value": ["J_V"]}
    texts = [text for _, text, *_ in texts_of(drawing_of("mine & yours", own_method()))]
    assert {"mine & yours", "eye", "ear<", "colour", "2 J_colour", "each rollout, 4 epochs"} <= set(texts)


def test_a_term_that_fails_is_named() -> None:
    method = own_method()
    (line,) = method.policy_phase
    broken = replace(method, policy_phase=(replace(line, terms={"J_no": (1.0, lambda out, batch: out.head("no"))}),))
    with pytest.raises(BadInput, match="The term J_no fails on a small minibatch, so it cannot be drawn"):
        steps(broken)


def test_the_command_draws(tmp_path: Path) -> None:
    where = tmp_path / "new" / "dcpg.svg"
    done = CliRunner().invoke(app, ["explain", "dcpg", "--draw", str(where)])
    assert done.exit_code == 0
    assert "minimise J_pi + C_V - 0.01 H" in done.output
    assert where.read_text() == drawing(resolve("dcpg", "bigfish"))
    refused = CliRunner().invoke(app, ["explain", "dcpg", "--draw", str(tmp_path / "dcpg.png")])
    assert "--draw makes SVG" in str(refused.exception)
