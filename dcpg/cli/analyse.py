"""The command `dcpg analyse`, and what it prints."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from dcpg.cli.options import At, Directory, Env, Json, Plugin, TestEnv, app, load_plugins
from dcpg.text import counted


class Analysis(StrEnum):
    """The names of the analyses."""

    stiffness = "stiffness"
    values = "values"
    ood_actions = "ood-actions"
    levels = "levels"


@app.command()
def analyse(
    analysis: Annotated[Analysis, typer.Argument(metavar="ANALYSIS", help="stiffness, values, ood-actions or levels.")],
    directory: Directory,
    states: Annotated[
        int | None,
        typer.Option(help="stiffness, ood-actions: the number of states in fresh rollouts. (default: 16384)", min=2),
    ] = None,
    levels: Annotated[
        int | None,
        typer.Option(
            help="levels: the number of training levels, at most, and of unseen ones. (default: 200)",
            min=1,
            max=100_000,
        ),
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="levels: episodes per level. (default: 1)", min=1)] = None,
    at: At = None,
    env: Env = None,
    test_env: TestEnv = None,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Analyse what a run has learnt, as in the paper.

    stiffness: does learning the value of one state help or hurt the value of another?
    values: how far are predicted values from true ones, on training and on unseen levels?
    ood-actions: how many wrong actions does the discriminator believe?
    levels: the return on each level, the hardest and easiest levels, and those that are never solved.

    The result is written to DIR/analysis as JSON and as a picture; `dcpg report` uses it.
    """
    from dcpg import api

    load_plugins(plugin)
    result = api.analyse(
        directory, analysis.value, states=states, levels=levels, episodes=episodes, at=at, env=env, test_env=test_env,
        **({} if as_json else {"show": print}),
    )  # fmt: skip
    if as_json:
        print(json.dumps(result))
        return
    name = analysis.value if at is None else f"{analysis.value}-{at:012d}"
    print("\n".join([*LINES[analysis](result), f"Kept: {directory / 'analysis' / name}.png"]))


def _stiffness(r: dict[str, Any]) -> list[str]:
    lines = [
        f"stiffness        {r['stiffness']:8.4f}   mean cosine between the value gradients of two states",
        f"sign-free        {r['sign_free']:8.4f}   the same, whatever the sign of each error",
        f"sign agreement   {r['sign_agreement']:8.4f}   1: every error has the same sign",
    ]
    if r["recorded_mean"] is not None:
        measurements = counted(len(r["recorded"]["steps"]), "measurement")
        lines.append(f"while training   {r['recorded_mean']:8.4f}   mean of {measurements}")
    return lines


def _values(r: dict[str, Any]) -> list[str]:
    from dcpg.storage.rows import SPLITS

    lines = [f"{'steps':>12s} {'levels':>7s} {'predicted':>10s} {'true':>8s} {'bias':>8s}   true, own discount"]
    for split in SPLITS:
        if split not in r:
            continue
        v = r[split]
        for i in sorted({0, len(r["steps"]) // 2, len(r["steps"]) - 1}):
            lines.append(
                f"{r['steps'][i]:12,d} {split:>7s} {v['predicted'][i]:10.2f} {v['true'][i]:8.2f} "
                f"{v['bias_true'][i]:+8.2f}   {v['true_own_gamma'][i]:.2f}"
            )
        lines.append(
            f"{'mean bias':>12s} {split:>7s} {v['mean_bias_true']:+28.2f}   {v['mean_bias_true_own_gamma']:+.2f}"
        )
    return lines


def _ood_actions(r: dict[str, Any]) -> list[str]:
    return [
        f"wrong actions believed  {r['mean']:.2f} ± {r['std']:.2f} over {counted(r['transitions'], 'transition')}",
        f"by raw action number    {r['raw_mean']:.2f} ± {r['raw_std']:.2f}",
        f"true action believed    {100 * r['true_believed']:.1f}% of the time",
    ]


def _levels(r: dict[str, Any]) -> list[str]:
    from dcpg.analysis.pictures import hardest_and_easiest
    from dcpg.storage.rows import SPLITS

    lines = []
    for split, name in SPLITS.items():
        found = r[split]
        lines.append(
            f"{name:16s} {found['mean']:8.2f}   {counted(len(found['levels']), 'level')}, "
            f"{len(found['unsolved'])} without any reward"
        )
        for label, places in zip(("hardest", "easiest"), hardest_and_easiest(r, split), strict=True):
            text = ", ".join(f"{found['levels'][i]} ({found['returns'][i]:g})" for i in places)
            lines.append(f"  {label:14s} {text}")
    return [*lines, f"gap              {r['gap']:+8.2f}"]


LINES = {
    Analysis.stiffness: _stiffness, Analysis.values: _values, Analysis.ood_actions: _ood_actions,
    Analysis.levels: _levels,
}  # fmt: skip
