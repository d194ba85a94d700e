"""The command line. Imports that take time stand inside the commands, so that --help answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcpg.errors import BadInput, DcpgError

if TYPE_CHECKING:
    from dcpg.config import Config

app = typer.Typer(
    name="dcpg",
    help="Delayed-Critic Policy Gradient: train agents on 200 Procgen levels, test them on levels never seen.\n\n"
    "Begin with:  dcpg train dcpg --game starpilot --preset laptop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
MethodName = Annotated[str, typer.Argument(metavar="METHOD", help="A method's name; `dcpg methods` lists them.")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory, as made by `dcpg train`.")]
Preset = Annotated[str, typer.Option(help="Sizes: paper (25M steps, days on a CPU), laptop (minutes), tiny (seconds).")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting by its dotted name; `dcpg config METHOD` lists them."),
]
At = Annotated[
    int | None, typer.Option(help="Weights at so many steps (a milestone; 0: untrained) instead of the newest ones.")
]


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods and what each optimises in which phase."""
    from dcpg.evaluation import PAPER_GAMMA
    from dcpg.explain import table

    rows = table()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(f"{row['name']:16s} {row['summary']}")
        for head, target in row["targets"].items():
            if target["gamma"] != PAPER_GAMMA:
                print(f"{'':16s}   discount of {head}: {target['gamma']}")
        if row["levels"] != "uniform":
            print(f"{'':16s}   levels: {row['levels']}")
        if row["augment"] != "none":
            print(f"{'':16s}   augmentation: {row['augment']}")
        for line in row["policy_phase"]:
            terms = " ".join([*(t for terms in line["before"].values() for t in terms), *line["terms"]])
            print(f"{'':16s}   policy phase, {line['epochs']} x tau: {terms}")
        for line in row["auxiliary_phase"]:
            print(f"{'':16s}   every {row['N_pi']} rollouts, {line['epochs']} x B: {' '.join(line['terms'])}")


@app.command()
def games(as_json: Json = False) -> None:
    """List the 16 games of Procgen."""
    from dcpg.envs.procgen import GAMES

    print(json.dumps(list(GAMES)) if as_json else "\n".join(GAMES))


@app.command()
def explain(method: MethodName, preset: Preset = "paper", settings: Set = None) -> None:
    """Print Algorithm 1 filled in for a method: every line, term, equation, weight and source."""
    from dcpg.config import resolve
    from dcpg.explain import explain as text

    print(text(resolve(method, "bigfish", preset=preset, settings=parse_settings(settings))))


@app.command()
def config(method: MethodName, preset: Preset = "paper", settings: Set = None, as_json: Json = False) -> None:
    """List every setting of a method: dotted name (for --set), value, and where the value comes from."""
    from dcpg.config import origins, resolve

    given = parse_settings(settings)
    rows = origins(resolve(method, "bigfish", preset=preset, settings=given), given)
    rows = [row for row in rows if row[0] not in ("method", "game", "seed", "preset")]
    if as_json:
        print(json.dumps({name: {"value": value, "origin": origin} for name, value, origin in rows}, indent=2))
        return
    for name, value, origin in rows:
        shown = (
            ",".join(map(str, value))
            if isinstance(value, tuple)
            else str(value).lower()
            if isinstance(value, bool)
            else value
        )
        print(f"{name:28s} {shown!s:>14s}   {origin}")


@app.command()
def train(
    method: MethodName,
    game: Annotated[str, typer.Option(help="A Procgen game; `dcpg games` lists them.")],
    steps: Annotated[
        int | None, typer.Option(help="Environment steps, floored to whole rollouts. (default: the preset's)")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every random choice: two runs with one seed are identical.")] = 0,
    preset: Preset = "paper",
    out: Annotated[Path | None, typer.Option(help="Where the run is written. (default: runs/GAME-METHOD-SEED)")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. (default: cpu)")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16. (default: fp32)")] = None,
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the encoders with torch.compile.")] = False,
    init: Annotated[
        Path | None, typer.Option(help="Start from the weights of another run's newest checkpoint.")
    ] = None,
    settings: Set = None,
) -> None:
    """Train a method on a game.

    Trains on 200 levels, evaluates on them and on unseen levels, and can be stopped (Ctrl-C) and resumed exactly.

    Example:  dcpg train ddcpg --game starpilot --preset laptop --seed 1 --set algorithm.N_pi=16
    """
    from dcpg.api import default_directory
    from dcpg.config import resolve
    from dcpg.display import display
    from dcpg.envs.make import known_spaces
    from dcpg.launch import start
    from dcpg.room import check

    given = parse_settings(settings)
    for name, value in (
        ("machine.device", device),
        ("machine.precision", precision),
        ("machine.compile", compile_ or None),
    ):
        if value is not None:
            given[name] = value
    c = resolve(method, game, preset=preset, steps=steps, seed=seed, settings=given)
    directory = out if out is not None else default_directory(game, method, seed)
    check(c, known_spaces(c), directory)
    announce(c, c.rollouts)
    watcher = display()
    run = start(c, directory, None, watcher, init)
    conclude(run.directory, run.summary)


@app.command()
def resume(
    directory: Directory,
    steps: Annotated[int | None, typer.Option(help="Go on to so many steps in all, also past a run's end.")] = None,
) -> None:
    """Go on exactly where a run stopped, as if it had never stopped."""
    import dataclasses

    from dcpg.config import from_json
    from dcpg.display import display
    from dcpg.launch import resume as go_on
    from dcpg.rundir import RunDirectory, read_rows

    run = RunDirectory(directory)
    c = from_json(run.read_config(), run.config)
    c = dataclasses.replace(c, steps=steps) if steps is not None else c
    done = len(read_rows(run.metrics.path))
    announce(c, max(c.rollouts - done, 0))
    result = go_on(directory, steps, None, display())
    conclude(result.directory, result.summary)


@app.command("eval")
def evaluate(
    directory: Directory,
    levels: Annotated[
        str, typer.Option(help="train, test (unseen), or a range A-B, each level exactly once.")
    ] = "test",
    episodes: Annotated[
        int | None, typer.Option(help="Episodes for train and test. (default: the run's, 100)", min=1)
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most likely action instead of sampling.")] = False,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Play a run's agent: returns, and predicted against true value at initial states.

    On a finished run, train and test repeat its last evaluation exactly.
    """
    from dcpg.agent import load
    from dcpg.api import evaluate_agent, level_range
    from dcpg.estimate import duration, playing

    agent = load(directory, at)
    if not as_json:
        known = levels in ("train", "test")
        count = (episodes or agent.config.evaluation.episodes) if known else len(level_range(levels))
        print(f"{count} episodes on this machine: about {duration(playing(agent, count))}.")
    result = evaluate_agent(agent, levels, episodes, greedy)
    if as_json:
        print(json.dumps(result))
        return
    import statistics

    returns = result["returns"]
    spread = 1.96 * statistics.stdev(returns) / len(returns) ** 0.5 if len(returns) > 1 else 0.0
    print(f"{levels} levels, {len(returns)} episodes, weights at {result['steps']:,} steps")
    print(f"  return           {result['return']:8.2f} +- {spread:.2f} (95% of the mean)")
    print(f"  predicted value  {result['predicted_value']:8.2f}")
    print(f"  true value       {result['true_value']:8.2f}")
    if levels not in ("train", "test"):
        for level, value in zip(result["level_seeds"], returns, strict=True):
            print(f"  level {level:10d}  {value:8.2f}")


@app.command()
def record(
    directory: Directory,
    levels: Annotated[str, typer.Option(help="train, test (unseen), or a range A-B.")] = "test",
    at: At = None,
    out: Annotated[Path | None, typer.Option(help="FILE.mp4 or FILE.gif. (default: DIR/replay.mp4)")] = None,
) -> None:
    """Make a video of a run's agent, up to nine levels side by side."""
    from dcpg import video
    from dcpg.agent import load
    from dcpg.api import recorded_levels
    from dcpg.estimate import duration, playing

    target = out if out is not None else directory / "replay.mp4"
    agent = load(directory, at)
    if target.suffix not in (".mp4", ".gif"):
        raise BadInput(f"A video ends in .mp4 or .gif; got {target.name!r}.")
    if not target.parent.is_dir():
        raise BadInput(f"There is no folder {target.parent} to write {target.name} into.")
    chosen = recorded_levels(agent, levels)
    print(f"{len(chosen)} episodes on this machine: about {duration(playing(agent, len(chosen)))}.")
    frames, returns = video.play(agent, chosen)
    video.write(frames, target)
    for level, value in zip(chosen, returns, strict=True):
        print(f"level {level}: return {value:g}")
    print(f"Video: {target}")


@app.command()
def bench(
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method to measure; may be given several times. (default: ppo ppg dcpg ddcpg)"),
    ] = None,
    preset: Preset = "paper",
    memory: Annotated[
        bool, typer.Option("--memory", help="Measure peak memory with B full of real frames instead (minutes).")
    ] = False,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Measure what methods cost on this machine, at their true sizes, against its matrix-multiply rate.

    Each method takes about a minute in a process of its own. Leave the machine alone meanwhile.

    Example:  dcpg bench --method dcpg --set network.channels=32,64,64
    """
    from dcpg.bench import DEFAULT_METHODS, shown
    from dcpg.bench import bench as measure

    found = measure(method or DEFAULT_METHODS, preset, parse_settings(settings), memory)
    print(json.dumps(found) if as_json else shown(found))


@app.command()
def doctor() -> None:
    """Check the installation: what is there, what is missing, what to do."""
    from dcpg.doctor import checks

    rows = checks()
    for what, well, found in rows:
        print(f"{'ok ' if well else 'BAD'}  {what:16s} {found}")
    if not all(well for _, well, _ in rows):
        raise typer.Exit(1)


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """KEY=VALUE pairs as a dictionary."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadInput(f"--set takes KEY=VALUE, such as algorithm.N_pi=16; got {pair!r}.")
        found[name.strip()] = value.strip()
    return found


def announce(c: Config, rollouts: int) -> None:
    """Say what a run will take before it starts."""
    from dcpg.envs.make import known_spaces
    from dcpg.estimate import duration, training
    from dcpg.room import needs

    known = known_spaces(c)
    if known is None or rollouts == 0:
        return
    print(f"This run needs {needs(c, known).sentence()}.")
    steps, seconds = rollouts * c.rollout_size, training(c, known, rollouts)
    print(f"{steps:,} steps ({rollouts} rollouts of {c.rollout_size}) on this machine: about {duration(seconds)}.")
    if seconds > 86400 and c.preset == "paper":
        print("For a result in minutes: --preset laptop. This run can be stopped and resumed at any time.")


def conclude(directory: Path, summary: dict[str, Any]) -> None:
    """Say what came out and where it is."""
    from dcpg.plots import curves
    from dcpg.rundir import RunDirectory

    try:
        picture = f"Curves: {curves(RunDirectory(directory))}   "
    except OSError as error:
        picture = f"(The curves could not be drawn: {error}.)   "
    asked = summary["steps_asked"]
    floored = "" if asked == summary["steps"] else f" ({asked:,} asked for, floored to whole rollouts)"
    print(f"Finished: {summary['steps']:,} steps{floored}.")
    print(f"Return on training levels {summary['train_return']:.2f}, on unseen levels {summary['test_return']:.2f}.")
    print(f"Run: {directory}   {picture}Next: dcpg record {directory}")


def main() -> None:
    """Run a command; a failure that has an explanation is one sentence and an exit code."""
    try:
        app()
    except DcpgError as error:
        print(f"dcpg: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except (MemoryError, RuntimeError) as error:
        from dcpg.errors import OutOfMemory
        from dcpg.memory import memory_was_refused

        if not memory_was_refused(error):
            raise
        print("dcpg: There was no memory left. What was saved stands; make room and try again.", file=sys.stderr)
        sys.exit(OutOfMemory.exit_code)
