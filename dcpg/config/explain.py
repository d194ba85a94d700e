"""Explains a method: Algorithm 1 with its numbers, and the equation and source of every term."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from dcpg.config.resolve import resolve
from dcpg.config.schema import Config
from dcpg.core.bandit import UCB, Fixed
from dcpg.core.draws import draw_negatives_from_B, draw_wrong_actions_from_B
from dcpg.core.method import Tau, Terms
from dcpg.envs.levels import PrioritisedLevels
from dcpg.methods import METHODS, Method, Optimise
from dcpg.methods.plugins import used
from dcpg.text import counted

SHOWN = 6  # phases of a schedule of N_pi


def explain(config: Config) -> str:
    """The method's pseudocode with its numbers, and each term's equation, weight and source."""
    m, h = config.declared(), config.algorithm
    lines = [f"{config.method}: {METHODS[config.method].summary}", ""]
    for encoder, heads in m.networks.items():
        lines.append(f"Require: encoder {encoder} with {', '.join(heads)}")
    net = config.network
    channels = ", ".join(map(str, net.wide_channels))
    skip = ", skips that carry relu(x)" if net.skip == "rectified" else ""
    which = "each" if len(m.networks) > 1 else "it"
    lines.append(f"         {which} is {net.encoder}: {channels} channels, {counted(net.features, 'feature')}{skip}")
    lines += ["", *_pseudocode(config, m)]
    lines += [
        "",
        f"Each Adam has its own moments: learning rate {h.learning_rate:g}, epsilon {h.adam_eps:g}, gradients "
        f"clipped to {h.max_grad_norm:g}.",
        "",
        "Terms and choices" if m.augmented or config.levels.sampler != "uniform" else "Terms",
    ]
    terms = _terms(m)
    if config.levels.sampler == "prioritised":
        terms["levels"] = PrioritisedLevels
    if m.augmented:
        terms["g"] = UCB if config.augment == "ucb" else Fixed
    width = max(map(len, terms))
    for name, term in terms.items():
        doc = docstring(term)
        given = ", ".join(f"{k} = {v}" for k, v in _given(term).items())
        details = [
            doc["summary"],
            "   ".join(part for part in (doc["equation"], f"({given})" if given else "") if part),
            f"source: {doc['source']}" if doc["source"] else "",
        ]
        first, *rest = [detail for detail in details if detail] or [""]
        lines.append(f"  {name:{width}s}  {first}".rstrip())
        lines += [f"  {'':{width}s}  {detail}" for detail in rest]
    return "\n".join(lines)


def _pseudocode(config: Config, m: Method) -> list[str]:
    lines = ["    for phase = 1, 2, ..."]
    if m.auxiliary_phase:
        lines += [" 2    B <- empty"]
    lines += [f" 3    for iter = 1 .. {_schedule(m)}"]
    steps = counted(config.rollout_length, "step")
    lines += [f" 4      tau <- {config.env.num_envs} x {steps} with pi{_levels(config)}"]
    several = len(m.targets) > 1  # then each is named after its encoder, as in the paper
    for head, t in m.targets.items():
        name = f"R_{m.encoder_of(head)}" if several else "R"
        lines.append(f" 4      {name} <- targets from {head}, gamma {t.gamma:g}, lambda {t.lam:g}")
    discount = "" if m.advantage_gamma is None else f", gamma {m.advantage_gamma:g}"
    lines.append(f" 4      A <- normalised advantages from {m.advantages}{discount}")
    if m.augmented:
        lines.append(f"        g <- {_augmentation(config)}")
    for line in m.policy_phase:
        lines += [f" 5      for epoch = 1 .. {line.epochs}", *(f" 6        {text}" for text in _minimise(line))]
    if m.auxiliary_phase:
        lines += [f" 8      add ({', '.join(m.keep)}) to B", "      remember pi_old(.|s) for every s in B, once"]
        for line in m.auxiliary_phase:
            lines += [f"10    for epoch = 1 .. {line.epochs}", *(f"11      {text}" for text in _minimise(line))]
    return lines


def _schedule(m: Method) -> str:
    """N_pi, or that of the first phases and how it goes on."""
    if isinstance(m.N_pi, int):
        return str(m.N_pi)
    lengths = [m.length_of(phase) for phase in range(SHOWN)]
    return f"N_pi, in phase 1, 2, ...: {', '.join(map(str, lengths))}, ..."


def _levels(config: Config) -> str:
    c = config.levels
    replay = f" on levels by prioritised replay (beta {c.beta:g}, rho {c.rho:g})"
    return replay if c.sampler == "prioritised" else ""


def _augmentation(config: Config) -> str:
    if config.augment != "ucb":
        return config.augment
    return f"the augmentation that UCB chooses (c {config.drac.c:g}, window {config.drac.window})"


def _minimise(line: Optimise) -> list[str]:
    """The line as text, with one text line per step if it takes several steps on each minibatch."""
    where = line.data
    data = (
        f"tau in {counted(where.minibatches, 'minibatch')}"
        if isinstance(where, Tau)
        else f"B, {counted(where.segments, 'segment')} per minibatch"
    )
    if line.draw in (draw_negatives_from_B, draw_wrong_actions_from_B):
        data += ", negatives from all of B"
    if not line.before:
        return [f"minimise {weighted_sum(line.terms)} with {data}   [Adam: {line.name}]"]
    steps = [f"minimise {weighted_sum(terms)}   [Adam: {name}]" for name, terms in line.adams.items()]
    return [f"on each minibatch, {data}:", f"  {steps[0]}", *(f"  then {step}" for step in steps[1:])]


def weighted_sum(terms: Terms) -> str:
    """A sum of terms with their weights, as the pages write it: J_pi + 0.5 J_V - 0.01 H."""
    parts: list[str] = []
    for name, (weight, _) in terms.items():
        sign = "- " if weight < 0 else "+ " if parts else ""
        parts.append(f"{sign}{'' if abs(weight) == 1 else f'{abs(weight):g} '}{name}")
    return " ".join(parts)


def _terms(method: Method) -> dict[str, Any]:
    return {name: term for terms in method.adams.values() for name, (_, term) in terms.items()}


def _given(term: Callable[..., Any]) -> dict[str, Any]:
    return dict(term.keywords) if isinstance(term, partial) else {}


def docstring(term: Callable[..., Any]) -> dict[str, str]:
    """A term's summary, equation and source, from its docstring."""
    function = term.func if isinstance(term, partial) else term
    text = inspect.getdoc(function) or ""
    found = {"summary": text.split("\n")[0], "equation": "", "source": ""}
    for line in text.split("\n"):
        for key in ("equation", "source"):
            if line.lower().startswith(f"{key}:"):
                found[key] = line.split(":", 1)[1].strip()
    return found


def table() -> list[dict[str, Any]]:
    """One row per method: its networks, targets, phases and fixed settings."""
    rows = []
    for name, spec in METHODS.items():
        config = resolve(name, "bigfish")
        m = config.declared()
        rows.append(
            {
                "name": name,
                "summary": spec.summary,
                "networks": {encoder: list(heads) for encoder, heads in m.networks.items()},
                "targets": {head: {"gamma": t.gamma, "lambda": t.lam} for head, t in m.targets.items()},
                "policy_phase": [_line(line) for line in m.policy_phase],
                "keep": list(m.keep),
                "auxiliary_phase": [_line(line) for line in m.auxiliary_phase],
                "N_pi": m.N_pi if isinstance(m.N_pi, int) else [m.length_of(phase) for phase in range(SHOWN)],
                "levels": config.levels.sampler,
                "augment": config.augment,
                "plugin": ", ".join(one["plugin"] for one in used(name, config.network.encoder)),
            }
        )
    return rows


def _line(line: Optimise) -> dict[str, Any]:
    before = {name: _weights(terms) for name, terms in line.before.items()}
    return {"name": line.name, "epochs": line.epochs, "terms": _weights(line.terms), "before": before}


def _weights(terms: Terms) -> dict[str, float]:
    return {name: weight for name, (weight, _) in terms.items()}
