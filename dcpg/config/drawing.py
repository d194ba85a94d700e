"""Draws a method as the paper's Figure 1 does: its encoders and heads, and what trains them in which phase.

The drawing follows from the declaration. Which heads and encoders a term trains is not declared: its gradients on a
tiny network tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

import torch

from dcpg.config.explain import weighted_sum
from dcpg.config.schema import Config
from dcpg.core.augmentations import AUGMENTATIONS
from dcpg.core.batch import Batch
from dcpg.core.encoders import Net
from dcpg.core.method import Method, Optimise, Tau, Term, Terms
from dcpg.core.networks import (
    Head,
    Network,
    Outputs,
    advantage_head,
    discriminator,
    order_head,
    policy_head,
    value_head,
)
from dcpg.errors import BadInput
from dcpg.seeding import generator

SHAPE, ACTIONS, NET = (16, 16, 3), 3, Net(channels=(1,), features=4, discriminator=4)  # of the tiny network

# what a head computes: a letter, its arguments, and those of them that go through the encoder
SYMBOLS: dict[Head, tuple[str, str, tuple[str, ...]]] = {
    policy_head: ("π", "a | s", ("s",)),
    value_head: ("V", "s", ("s",)),
    advantage_head: ("A", "s, a", ("s",)),
    order_head: ("D", "s, s₂", ("s", "s₂")),
    discriminator: ("f", "s, a, s'", ("s", "s'")),
}
TAKES_ACTION = (advantage_head, discriminator)
GREEK = {"theta": "θ", "phi": "φ", "psi": "ψ", "omega": "ω"}

LETTER, LINE, GAP = 7.6, 20, 26  # pixels: the width of a letter, the height of a line, the space between columns
HEAD, ENCODER, BETWEEN, EDGE = 76, 80, 72, 24  # heights of boxes, the space between them, and around everything
BEND = 12  # pixels: an arrow that would go less than this to the side goes straight

STYLE = """
text { font: 14px sans-serif; fill: #1a1a1a; text-anchor: middle }
.left { text-anchor: start } .small { font-size: 12px; fill: #555 } .title { font-weight: bold; font-size: 16px }
.policy { fill: #0b57b0 } .auxiliary { fill: #b3261e }
.paper { fill: #ffffff } .box { fill: #f4f4f4; stroke: #555 }
.line { fill: none; stroke: #555; shape-rendering: crispEdges }
.tip { fill: #555 } .rule { stroke: #ddd }
@media (prefers-color-scheme: dark) {
text { fill: #eee } .small { fill: #aaa } .policy { fill: #8ab8ff } .auxiliary { fill: #ff9a90 }
.paper { fill: #1c1e22 } .box { fill: #2a2d33; stroke: #999 } .line { stroke: #999 } .tip { fill: #999 }
.rule { stroke: #3a3d44 }
}
"""


@dataclass
class Step:
    """One optimiser step: a row of the drawing."""

    phase: str  # policy or auxiliary
    label: tuple[str, str]
    adam: str
    terms: dict[str, tuple[Terms, bool]] = field(default_factory=dict)  # head -> its terms; whether the encoder learns
    # encoder -> terms that train it through none of its heads
    encoders: dict[str, Terms] = field(default_factory=dict)


def steps(method: Method) -> list[Step]:
    """Every optimiser step of a method in order, and which of its terms train which head."""
    network = Network(method.networks, SHAPE, ACTIONS, NET).initialise(generator(0, "drawing"))
    found = []
    for phase, lines in (("policy", method.policy_phase), ("auxiliary", method.auxiliary_phase)):
        for number, line in enumerate(lines):
            batch = _batch(method, line)
            for place, (adam, terms) in enumerate(line.adams.items()):
                step = Step(phase, _label(method, phase, line, number, place), adam)
                _place(step, terms, method, network, batch)
                found.append(step)
    return found


def _label(method: Method, phase: str, line: Optimise, number: int, place: int) -> tuple[str, str]:
    epochs = f"{line.epochs} epoch{'s' if line.epochs > 1 else ''}"
    if place:
        return "then", "on the same minibatch"
    if number:
        return "then", epochs
    if phase == "policy":
        return "policy phase", f"each rollout, {epochs}"
    lengths = [str(method.length_of(phase)) for phase in range(3)]
    N_pi = lengths[0] if isinstance(method.N_pi, int) else f"{', '.join(lengths)}, ..."
    return "auxiliary phase", f"after {N_pi} rollout{'' if N_pi == '1' else 's'}, {epochs}"


def _place(step: Step, terms: Terms, method: Method, network: Network, batch: Batch) -> None:
    reached = {name: trained(name, term, network, batch) for name, (_, term) in terms.items()}
    for encoder, heads in method.networks.items():
        for head in heads:
            own = {name: terms[name] for name in terms if head in reached[name]}
            if own:
                step.terms[head] = own, any(encoder in reached[name] for name in own)
        through_none = {n: terms[n] for n in terms if encoder in reached[n] and not reached[n] & set(heads)}
        if through_none:
            step.encoders[encoder] = through_none


def trained(name: str, term: Term, network: Network, batch: Batch) -> set[str]:
    """The encoders and heads that get a gradient from a term."""
    try:
        value = term(Outputs(network, batch, len(batch)), batch).sum()
    except Exception as error:
        raise BadInput(f"The term {name} fails on a small minibatch, so it cannot be drawn: {error}") from error
    if not value.requires_grad:
        return set()
    parts = {part: list(module.parameters()) for part, module in network.named_children()}
    weights = [weight for of_part in parts.values() for weight in of_part]
    gradients = dict(zip(weights, torch.autograd.grad(value, weights, allow_unused=True), strict=True))
    return {part for part, own in parts.items() if any(gradients[weight] is not None for weight in own)}


def _batch(method: Method, line: Optimise) -> Batch:
    """Two samples with every field that a term may use."""
    b, last = 2, 0 if isinstance(line.data, Tau) else 1
    values = {head: torch.zeros(b) for head in method.targets}
    return Batch(
        frames=torch.zeros(b + last, *SHAPE, dtype=torch.uint8),
        valid=torch.ones(b),
        returns=values,
        rows=torch.arange(b),
        actions=torch.zeros(b, dtype=torch.int64),
        log_probs=torch.zeros(b),
        advantages=torch.zeros(b),
        old_values=values,
        old_log_policy=torch.full((b, ACTIONS), -1.0),
        next_rows=torch.arange(last, b + last),
        crosses=torch.zeros(b),
        segments=torch.arange(last),
        augmentation={"crop": AUGMENTATIONS["crop"].draw(b, generator(0, "drawing"))},
        other_frames=torch.zeros(b, *SHAPE, dtype=torch.uint8),
        other_is_earlier=torch.zeros(b),
        negative_next=torch.zeros(b, dtype=torch.int64),
        negative_actions=torch.ones(b, dtype=torch.int64),
    )


def drawing(config: Config) -> str:
    """The drawing of a method with its settings, as SVG. It is legible on light and dark pages."""
    return drawing_of(config.method, config.declared())


def drawing_of(title: str, method: Method) -> str:
    """The drawing of a declared method, as SVG."""
    return _Drawing(title, method).svg()


class _Drawing:
    """The places of everything, in pixels."""

    def __init__(self, title: str, method: Method) -> None:
        self.title, self.method, self.steps = title, method, steps(method)
        labels = [text for step in self.steps for text in step.label]
        self.left = EDGE + _width([*labels, title]) + GAP
        self.columns = {head: _width(self._texts(head)) for heads in method.networks.values() for head in heads}
        self.centre: dict[str, float] = {}
        at = self.left
        for encoder, heads in method.networks.items():
            first = at
            for head in heads:
                self.centre[head] = at + self.columns[head] / 2
                at += self.columns[head] + GAP
            wide = _width(self._in_encoder(encoder)) + GAP
            if at - first < wide:  # a narrow head on an encoder with much to say
                for head in heads:
                    self.centre[head] += (wide - (at - first)) / 2
                at = first + wide
            places = [self.centre[head] for head in heads]
            middle = (places[0] + places[-1]) / 2
            nearest = min(places, key=lambda place: abs(place - middle))
            self.centre[encoder] = nearest if abs(nearest - middle) < BEND else middle
            at += GAP
        self.width = at - 2 * GAP + EDGE
        self.rows = EDGE + 2 * LINE
        self.heads = self.rows + len(self.steps) * 2.6 * LINE
        self.encoders = self.heads + HEAD + BETWEEN
        self.height = self.encoders + ENCODER + 72

    def svg(self) -> str:
        size = f"{self.width:.0f} {self.height:.0f}"
        wide, high = size.split()
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{wide}" height="{high}" role="img">\n'
            f"<title>The networks of {escape(self.title)}, and what trains them in which phase</title>\n"
            f'<style>{STYLE}</style>\n<rect class="paper" width="100%" height="100%" rx="8"/>'
        )
        return "\n".join([head, *self._rows(), *self._networks(), "</svg>"]) + "\n"

    def _texts(self, head: str) -> list[str]:
        """Everything in a head's column."""
        make = next(heads[head] for heads in self.method.networks.values() if head in heads)
        letter, arguments, _ = SYMBOLS.get(make, ("", "", ()))
        texts = [f"  {head}  ", f"  {letter}_({arguments})  "]
        texts += ["  gives the advantages "] if head == self.method.advantages else []
        return texts + [text for step in self.steps for text in _cell(step, head)]

    def _in_encoder(self, encoder: str) -> list[str]:
        through_no_head = [step.encoders[encoder] for step in self.steps if encoder in step.encoders]
        return ["   encoder   ", f"  {encoder}  ", *(f"  {weighted_sum(terms)}  " for terms in through_no_head)]

    def _rows(self) -> Iterator[str]:
        yield _text(EDGE, EDGE + 12, self.title, "left title")
        for number, step in enumerate(self.steps):
            y = self.rows + number * 2.6 * LINE
            yield f'<line class="rule" x1="{EDGE}" x2="{self.width - EDGE:.0f}" y1="{y - 22:.0f}" y2="{y - 22:.0f}"/>'
            yield _text(EDGE, y, step.label[0], f"left {step.phase}")
            yield _text(EDGE, y + LINE, step.label[1], "left small")
            for head in step.terms:
                first, *more = _cell(step, head)
                yield _text(self.centre[head], y, first, step.phase)
                for k, text in enumerate(more, 1):
                    yield _text(self.centre[head], y + k * LINE, text, "small")

    def _networks(self) -> Iterator[str]:
        for encoder, heads in self.method.networks.items():
            x, letters = self.centre[encoder], GREEK.get(encoder, encoder)
            inputs = ["s"]
            for head, make in heads.items():
                at = self.centre[head]
                yield _arrow(x, self.encoders, at, self.heads + HEAD, self.heads + HEAD + 46)
                letter, arguments, states = SYMBOLS.get(make, ("", "", ("s",)))
                inputs += [state for state in states if state not in inputs]
                yield _box(at, self.heads, self.columns[head], HEAD)
                gives = head == self.method.advantages
                lines = [_text(at, 0, head)]
                lines += [_symbol(at, letter, letters, arguments)] if letter else []
                lines += [_text(at, 0, "gives the advantages", "small")] if gives else []
                yield from _stacked(lines, self.heads, HEAD)
                if make in TAKES_ACTION:
                    aside = at + self.columns[head] / 3
                    yield _arrow(aside, self.heads + HEAD + 18, aside, self.heads + HEAD)
                    yield _text(aside, self.heads + HEAD + 32, "a")
            inside = [_text(x, 0, "encoder"), _text(x, 0, letters)]
            width = max(_width(self._in_encoder(encoder)), 110)
            yield _box(x, self.encoders, width, ENCODER)
            for step in self.steps:
                if encoder in step.encoders:
                    inside.append(_text(x, 0, weighted_sum(step.encoders[encoder]), step.phase))
            yield from _stacked(inside, self.encoders, ENCODER)
            inputs += ["g(s)"] if self.method.augmented else []
            yield _arrow(x, self.encoders + ENCODER + 36, x, self.encoders + ENCODER)
            yield _text(x, self.encoders + ENCODER + 54, ", ".join(inputs))


def _cell(step: Step, head: str) -> list[str]:
    """What trains a head in a step, and a remark if the encoder does not learn from it."""
    if head not in step.terms:
        return []
    terms, encoder_learns = step.terms[head]
    return [weighted_sum(terms), *([] if encoder_learns else ["this head alone"])]


def _width(texts: list[str]) -> float:
    return max(map(len, texts)) * LETTER


def _text(x: float, y: float, text: str, style: str = "") -> str:
    of = f' class="{style}"' if style else ""
    return f'<text{of} x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'


def _symbol(x: float, letter: str, encoder: str, arguments: str) -> str:
    lowered = f'<tspan dy="4" font-size="10">{escape(encoder)}</tspan><tspan dy="-4">({escape(arguments)})</tspan>'
    return f'<text x="{x:.0f}" y="0">{letter}{lowered}</text>'


def _stacked(lines: list[str], top: float, height: float) -> Iterator[str]:
    """Texts below each other, in the middle of a box."""
    first = top + height / 2 - (len(lines) - 1) * LINE / 2 + 5
    for k, line in enumerate(lines):
        yield line.replace('y="0"', f'y="{first + k * LINE:.0f}"', 1)


def _box(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="box" x="{x - width / 2:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height}" rx="6"/>'


def _arrow(x1: float, y1: float, x2: float, y2: float, bend: float | None = None) -> str:
    """An arrow from a point up to a higher one; if that is not straight above, across at the height `bend`."""
    way = f"M{x1:.0f} {y1:.0f}" + ("" if bend is None else f"V{bend:.0f}H{x2:.0f}") + f"V{y2 + 8:.0f}"
    tip = f"M{x2 - 4:.0f} {y2 + 9:.0f}L{x2:.0f} {y2:.0f}L{x2 + 4:.0f} {y2 + 9:.0f}Z"
    return f'<path class="line" d="{way}"/><path class="tip" d="{tip}"/>'
