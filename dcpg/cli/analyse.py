"""The command `dcpg analyse`, and what it prints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcpg.cli.options import At, Env, Json, Plugin, TestEnv, app, load_plugins
from dcpg.errors import BadInput, DcpgError
from dcpg.text import counted, say

if TYPE_CHECKING:
    from dcpg.analysis.many import Analysed

NAMES_SHOWN = 10  # of runs that failed, in the last message


class Analysis(StrEnum):
    """The names of the analyses."""

    stiffness = "stiffness"
    values = "values"
    ood_actions = "ood-actions"
    levels = "levels"


@app.command()
def analyse(
    analysis: Annotated[Analysis, typer.Argument(metavar="ANALYSIS", help="stiffness, values, ood-actions or levels.")],
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Runs, or folders with runs in them, such as the directory of a sweep."),
    ],
    states: Annotated[
        int | None,
        typer.Option(help="stiffness, ood-actions: the number of states in fresh rollouts. (default: 16384)", min=2),
    ] = None,
    burn_in: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            help="stiffness, ood-actions: the steps that each environment plays before these states. (default: 1000)",
            min=0,
            max=1_000_000,
        ),
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
    again: Annotated[
        bool,
        typer.Option("--again", help="Many runs: also those that have this analysis of their newest weights already."),
    ] = False,
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

    The result is written to DIR/analysis as JSON and as a picture; `dcpg report` uses it. Of several runs, those that
    have it already are passed over, and one that cannot be analysed does not stop the others (exit code 1 at the end).

    Example:  dcpg analyse ood-actions sweeps/ablations
    """
    from dcpg import api

    load_plugins(plugin)
    options: dict[str, Any] = {
        "states": states, "burn_in": burn_in, "levels": levels, "episodes": episodes, "at": at, "env": env,
        "test_env": test_env,
    }  # fmt: skip
    if not _is_one_run(directories):
        _analyse_all(directories, analysis, options | {"again": again}, as_json)
        return
    options |= {} if as_json else {"show": say}
    result = api.analyse(directories[0], analysis.value, **options)
    if as_json:
        print(json.dumps(result))
        return
    name = analysis.value if at is None else f"{analysis.value}-{at:012d}"
    say(*LINES[analysis](result), f"Kept: {directories[0] / 'analysis' / name}.png")


def _is_one_run(directories: Sequence[Path]) -> bool:
    from dcpg.runs.folders import run_directories

    (first, *more) = directories
    return not more and (not first.is_dir() or run_directories([first])[0] == [first])


def _analyse_all(directories: Sequence[Path], analysis: Analysis, options: dict[str, Any], as_json: bool) -> None:
    """Analyse many runs with a line for each; raise at the end if any failed."""
    from dcpg import api
    from dcpg.cli.analyse_display import AnalyseDisplay
    from dcpg.training.display import Screen

    display = AnalyseDisplay(Screen(stderr=as_json))
    display.open(f"{analysis.value} of the runs in {', '.join(map(str, directories))}")
    try:
        runs = api.analyse_all(
            *directories,
            analysis=analysis.value,
            **options,
            tell=lambda number, total, run: display.done(number, total, run, _one_line(analysis, run)),
        )
    finally:
        display.close()
    if as_json:
        print(json.dumps([run.to_json() for run in runs]))
    else:
        say(*_summary(runs))
    failed = [run for run in runs if run.failed]
    if failed:
        named = " ".join(f"{run.run}: {run.reason}" for run in failed[:NAMES_SHOWN])
        more = f" And {len(failed) - NAMES_SHOWN} more." if len(failed) > NAMES_SHOWN else ""
        raise DcpgError(f"{len(failed)} of {counted(len(runs), 'run')} could not be analysed. {named}{more}")
    if all(run.state == "left out" for run in runs):
        raise BadInput(f"None of the runs can have this analysis: {runs[0].reason}")


def _one_line(analysis: Analysis, run: Analysed) -> str:
    if run.result is None:
        return f"{'failed: ' if run.failed else 'left out: '}{run.reason}"
    return f"{SHORT[analysis](run.result)}{' (there already)' if run.state == 'there' else ''}"


def _summary(runs: Sequence[Analysed]) -> Iterator[str]:
    count = Counter(run.state for run in runs)
    parts = [f"{count['analysed']} analysed", f"{count['there']} there already"]
    parts += [f"{count['left out']} left out"] if count["left out"] else []
    parts += [f"{count['failed']} failed"] if count["failed"] else []
    yield f"{counted(len(runs), 'run')}: {', '.join(parts)}."
    if count["there"]:
        yield "Give --again to analyse those that were there already too."


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

SHORT = {  # one line of each, for many runs
    Analysis.stiffness: lambda r: f"stiffness {r['stiffness']:.4f}, sign-free {r['sign_free']:.4f}",
    Analysis.values: lambda r: f"mean bias {r['train']['mean_bias_true']:+.2f} on training levels",
    Analysis.ood_actions: lambda r: f"{r['mean']:.2f} ± {r['std']:.2f} wrong actions believed",
    Analysis.levels: lambda r: f"mean return {r['train']['mean']:.2f} on training levels, gap {r['gap']:+.2f}",
}
