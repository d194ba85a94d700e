"""`dcpg eval`, `dcpg record` and `dcpg export`: commands for a trained agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dcpg.cli.options import At, Directory, Env, Json, Plugin, TestEnv, app, load_plugins
from dcpg.errors import BadInput
from dcpg.text import counted, say


@app.command("eval")
def evaluate(
    directory: Directory,
    levels: Annotated[
        str,
        typer.Option(help="train, test (unseen), or level seeds such as 0-19 or 3,17,120-122, each played once."),
    ] = "test",
    episodes: Annotated[
        int | None,
        typer.Option(help="Number of episodes for train and test, 4,096 at most. (default: as in the run, 100)", min=1),
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most likely action instead of sampling.")] = False,
    at: At = None,
    env: Env = None,
    test_env: TestEnv = None,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run's agent: its return, and the predicted and true value of initial states.

    On a finished run, train and test repeat its last evaluation exactly.
    """
    from dcpg import api
    from dcpg.runs.evaluate import half_width
    from dcpg.storage.rows import SPLITS

    load_plugins(plugin)
    result = api.evaluate(
        directory, levels=levels, episodes=episodes, greedy=greedy, at=at, env=env, test_env=test_env,
        **({} if as_json else {"show": say}),
    )  # fmt: skip
    if as_json:
        print(json.dumps(result))
        return
    returns = result["returns"]
    listed = "level" if len(returns) == 1 else "levels"
    where = f"{levels} levels" if levels in SPLITS else f"{listed} {levels}"
    say(f"{where}, {counted(len(returns), 'episode')}, weights at {result['steps']:,} steps")
    say(f"  return           {result['return']:8.2f} +- {half_width(returns):.2f} (95% of the mean)")
    say(f"  predicted value  {result['predicted_value']:8.2f}")
    say(f"  true value       {result['true_value']:8.2f}")
    if levels not in SPLITS:
        for level, value in zip(result["level_seeds"], returns, strict=True):
            say(f"  level {level:10d}  {value:8.2f}")


@app.command()
def record(
    directory: Directory,
    levels: Annotated[
        str, typer.Option(help="train or test (unseen): four levels; or up to nine level seeds such as 3,17,120-122.")
    ] = "test",
    at: At = None,
    out: Annotated[Path | None, typer.Option(help="FILE.mp4 or FILE.gif. (default: DIR/replay.mp4)")] = None,
    env: Env = None,
    test_env: TestEnv = None,
    plugin: Plugin = None,
) -> None:
    """Record a video of a run's agent on up to nine levels side by side.

    Your own environment must be able to draw itself (render_mode "rgb_array"); four episodes are shown.

    Beside each game, the video shows the return so far, the value estimate V(s) and its curve (in normalised rewards,
    as in training), and the policy with the action that was taken.
    """
    from dcpg import api

    load_plugins(plugin)
    made = api.record(directory, levels=levels, at=at, out=out, env=env, test_env=test_env, show=say)
    for i, (level, value, length) in enumerate(zip(made.levels, made.returns, made.lengths, strict=True), 1):
        say(f"{f'level {level}' if level >= 0 else f'episode {i}'}: return {value:g} in {counted(length, 'step')}")
    say(f"Video: {made.video}")


@app.command()
def export(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A run's directory; with --rows also a sweep's, or any folder of runs."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write. (default: DIR/export; --rows needs one)")
    ] = None,
    at: At = None,
    rows: Annotated[
        bool,
        typer.Option("--rows", help="Instead of the agent: evaluations, thinned metrics and settings of every run."),
    ] = False,
    plugin: Plugin = None,
) -> None:
    """Export a run's agent as a folder to publish: weights, configuration, model card and, on Procgen, a video.

    The layout is that of Hugging Face. `dcpg eval`, `dcpg record` and `dcpg.load` read the folder like a run.

    With --rows, export what a report needs of all finished runs in DIR, about 100 kB each: `dcpg report FOLDER` makes
    the same tables and figures from it.
    """
    import shlex

    from dcpg import api

    load_plugins(plugin)
    if rows:
        if out is None or at is not None:
            raise BadInput("--rows exports whole runs: give it a folder with --out, and no --at.")
        published = api.publish(directory, out=out, show=say)
        for path, notes in published.notes.items():
            say(*(f"note: {path}: {note}" for note in notes))
        for path, why in published.left_out.items():
            say(f"Left out: {path} ({why})")
        say(f"{counted(len(published.runs), 'run')}; see them with: dcpg report {shlex.quote(str(published.folder))}")
        return
    folder = api.export(directory, out=out, at=at, show=say)
    say(f"Export: {folder}")
    say(f"To publish it, with Hugging Face's own client: hf upload USER/NAME {shlex.quote(str(folder))}")
