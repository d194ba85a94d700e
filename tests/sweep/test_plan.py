"""Plans, and the names of their runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dcpg.config.written import fingerprint
from dcpg.errors import BadInput
from dcpg.sweep import plan as planning
from dcpg.sweep.directory import SweepDirectory
from dcpg.sweep.plan import Plan, expand, named_sweeps, read
from tests.docs.pages import DOCS, section, table_rows
from tests.sweep.fakes import TINY, planned


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    """Every sweep of the package; reading them takes a second."""
    return {name: read(name) for name in named_sweeps()}


def test_the_page_on_scale_counts_every_sweep_of_the_paper(plans: dict[str, Plan]) -> None:
    page = section(DOCS / "scale.md", "What Table 1 takes")
    rows = [(row[0].split("`")[1], row) for row in table_rows(page) if row[0].startswith("`")]
    counted = {name: (int(row[1]), float(row[2].removesuffix(" billion"))) for name, row in rows if name in plans}
    found = re.search(r"table1: ([\d,]+) runs of [\d,]+ steps; ([\d,]+) steps in whole rollouts", page)
    assert found is not None
    runs, steps = (int(number.replace(",", "")) for number in found.groups())
    counted["table1"] = runs, steps / 1e9
    assert counted.keys() == plans.keys() - {"laptop", "combinations"}  # which are not the paper's
    for name, (runs, billions) in counted.items():
        jobs = plans[name].jobs
        assert runs == len(jobs)
        assert billions == pytest.approx(sum(j.config.rollouts * j.config.rollout_size for j in jobs) / 1e9, abs=0.06)


def test_the_sweeps_that_come_with_the_package(plans: dict[str, Plan]) -> None:
    assert list(named_sweeps()) == [
        "ablations", "combinations", "eta", "laptop", "regularisation", "stiffness", "table1",
    ]  # fmt: skip
    sizes = {}
    for name, plan in plans.items():
        sizes[name] = (len(plan.jobs), {job.config.steps for job in plan.jobs})
        assert {job.config.machine.threads for job in plan.jobs} == {1}
        assert len({fingerprint(job.config.to_json()) for job in plan.jobs}) == len(plan.jobs)
    assert sizes == {
        "table1": (1120, {25_000_000}), "ablations": (960, {25_000_000}), "regularisation": (960, {25_000_000}),
        "stiffness": (256, {8_000_000}), "laptop": (8, {65_536}), "combinations": (672, {25_000_000}),
        "eta": (640, {25_000_000}),
    }  # fmt: skip
    methods = [{job.config.method for job in plans[name].jobs} for name in ("table1", "ablations", "regularisation")]
    assert [len(m) for m in methods] == [7, 6, 2]
    assert len(set.union(*methods)) == 15
    assert {job.config.algorithm.eta for job in plans["ablations"].jobs if job.config.method == "dcpg+fi"} == {1.0}
    gammas = {job.config.algorithm.gamma for job in plans["regularisation"].jobs if job.config.method == "ppg+dr"}
    alphas = {job.config.algorithm.alpha for job in plans["regularisation"].jobs if job.config.method == "ppg+ar"}
    assert (gammas, alphas) == ({0.98, 0.99, 0.995}, {0.01, 0.05, 0.1})
    tried = {(job.config.method, job.config.algorithm.eta) for job in plans["eta"].jobs}
    assert tried == {("ddcpg", 0.5), ("ddcpg", 1.0), ("dcpg+fi", 0.5), ("dcpg+fi", 1.0)}
    assert {job.config.algorithm.eta for job in plans["table1"].jobs if job.config.method == "ddcpg"} == {0.5}
    stiffness = plans["stiffness"].jobs
    assert {job.config.levels.count for job in stiffness} == {1, 2, 5, 10, 20, 50, 100, 200}
    assert {job.config.analyse for job in stiffness} == {("stiffness",)}
    assert {job.config.preset for job in plans["laptop"].jobs} == {"laptop"}


def test_a_plan_and_its_names(tmp_path: Path) -> None:
    file = tmp_path / "My sweep.toml"
    file.write_text(
        """
        methods = ["ppg+dr", "ppo"]
        games = ["maze", "coinrun"]
        seeds = [3, 7]
        levels = [1, 50]
        preset = "tiny"
        [set]
        evaluation.max_steps = 12
        network.channels = [2, 4]
        algorithm.entropy = 0.02
        [set.ppo]
        algorithm.entropy = 0.03
        [grid."ppg+dr"]
        algorithm.gamma = [0.98, 1]
        algorithm.N_pi = [1, 2]
        [grid]
        levels.start = [0, 5]
        """
    )
    plan = read(str(file))
    names = [job.name for job in plan.jobs]
    assert plan.name == "my-sweep"
    assert len(names) == len(set(names)) == 2 * 2 * 2 * (2 * 4 + 2)
    assert names[0] == "maze-ppg+dr-levels=1-start=0-gamma=0.98-n_pi=1-3"
    assert "coinrun-ppo-levels=50-start=5-7" in names
    job = plan.jobs[names.index("coinrun-ppg+dr-levels=50-start=5-gamma=1.0-n_pi=2-7")]
    c = job.config
    assert (c.method, c.game, c.seed, c.steps, c.preset) == ("ppg+dr", "coinrun", 7, 2048, "tiny")
    assert (c.levels.count, c.levels.start, c.algorithm.gamma, c.algorithm.N_pi) == (50, 5, 1.0, 2)
    assert (c.evaluation.max_steps, c.network.channels, c.machine.threads) == (12, (2, 4), 1)
    assert {j.config.algorithm.entropy for j in plan.jobs if j.config.method == "ppo"} == {0.03}
    assert {j.config.algorithm.entropy for j in plan.jobs if j.config.method != "ppo"} == {0.02}
    assert job.label == "ppg+dr-levels=50-start=5-gamma=1.0-n_pi=2"


def test_scalars_and_defaults() -> None:
    plan = expand("one", {"methods": "dcpg", "games": "maze", "levels": 10}, "one.toml")
    (job,) = plan.jobs
    assert job.name == "maze-dcpg-0"
    assert (job.config.steps, job.config.preset, job.config.levels.count) == (25_000_000, "paper", 10)
    assert job.config.machine.threads == 1  # though a run of its own would take every core
    games = expand("all", {"methods": "ppo", "games": "all", "set": {"machine": {"threads": 3}}}, "all.toml").jobs
    assert len(games) == 16
    assert {job.config.machine.threads for job in games} == {3}
    threads = planned(grid={"machine": {"threads": [1, 2]}}).jobs
    assert [job.name for job in threads[:2]] == ["starpilot-ppo-threads=1-0", "starpilot-ppo-threads=2-0"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "Unknown key of a sweep 'seed'; did you mean 'seeds'?"),
        ({"methods": "dcgp"}, "Unknown method 'dcgp'; did you mean 'dcpg'?"),
        ({"methods": []}, "methods is empty."),
        ({"methods": ["ppo", "ppo"]}, "methods names 'ppo' twice."),
        ({"methods": 3}, "methods must be names; got 3."),
        ({"methods": "own:thing"}, "Unknown method"),
        ({"games": "starpilto"}, "Unknown game 'starpilto'; did you mean 'starpilot'?"),
        ({"games": "own:thing"}, "own:thing is none of Procgen's games"),
        ({"games": "../../etc"}, "Unknown game"),
        ({"seeds": []}, "seeds is empty."),
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": [1, 1]}, "seeds names 1 twice."),
        ({"seeds": [-1]}, "seeds must be whole numbers, 0 or more; got -1."),
        ({"seeds": True}, "seeds must be whole numbers, 0 or more; got True."),
        ({"seeds": "3"}, "seeds must be whole numbers, 0 or more; got '3'."),
        ({"steps": 1.5}, "steps must be whole numbers, 0 or more; got 1.5."),
        ({"steps": [512, 1024]}, "steps must be one number; for several, write them as steps under [grid]"),
        ({"steps": 1}, "steps=1 is less than one rollout"),
        ({"preset": "papr"}, "Unknown preset 'papr'; did you mean 'paper'?"),
        ({"preset": ["paper"]}, "Unknown preset"),
        ({"levels": [0.5]}, "levels must be whole numbers, 0 or more; got 0.5."),
        ({"levels": [1, 1]}, "levels names 1 twice."),
        ({"set": 3}, "[set] must be a table; got 3."),
        ({"set": {"algorithm": {"gama": 1}}}, "Unknown setting 'algorithm.gama'; did you mean 'algorithm.gamma'?"),
        ({"set": {"algorithm": {}}}, "Unknown setting 'algorithm'"),
        ({"set": {"algorithm": {"gamma": "x"}}}, "algorithm.gamma must be a number; got 'x'."),
        ({"set": {"algorithm": {"gamma": float("nan")}}}, "algorithm.gamma must be a finite number"),
        ({"set": {"algorithm": {"N_pi": 4}}}, "ppo has no setting algorithm.N_pi; put it under"),
        (
            {"set": {"levels": {"rho": 0.5}}},
            "levels.rho has no effect while levels.sampler=uniform; it needs",
        ),
        ({"set": {"seed": 1}}, "seed belongs at the top of a sweep, as seeds."),
        ({"grid": {"method": ["ppo"]}}, "method belongs at the top of a sweep, as methods."),
        ({"set": {"ppg": {"algorithm": {"gamma": 1}}}}, '[set."ppg"] is for a method that this sweep does not train.'),
        ({"set": {"dcpg": {}}}, '[set."dcpg"] must be a table of settings; got {}.'),
        ({"set": {"steps": 512}}, "steps is given at the top and steps in [set] or [grid]; choose one."),
        ({"levels": 3, "set": {"levels": {"count": 3}}}, "levels is given at the top and levels.count in [set]"),
        ({"grid": {"algorithm": {"gamma": 0.9}}}, "[grid] algorithm.gamma must be a list of values; got 0.9."),
        ({"grid": {"algorithm": {"gamma": []}}}, "[grid] algorithm.gamma must be a list of values; got []."),
        ({"grid": {"algorithm": {"gamma": [1, 1.0]}}}, "two of its runs would both be starpilot-ppo-gamma=1.0-0"),
        (
            {"set": {"algorithm": {"gamma": 1}}, "grid": {"dcpg": {"algorithm": {"gamma": [1]}}}},
            "algorithm.gamma is both in [set] and in [grid]; choose one.",
        ),
        ({"set": {"machine": {"threads": [1]}}}, "machine.threads must be a whole number; got [1]."),
        ({"set": {"machine": {"threads": 0}}}, "machine.threads=0 means all cores of whatever machine it is"),
        ({"grid": {"machine": {"threads": [1, 0]}}}, "machine.threads=0 means all cores of whatever machine it is"),
    ],
)
def test_plans_that_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        planned(**changes)
    assert str(error.value).startswith("small.toml: ")
    assert said in str(error.value)


def test_too_many_runs_are_refused_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists as long as a file may hold, a product with thousands of digits, and tables as deep as they may be."""

    def refuse(*given: Any, **more: Any) -> Any:
        raise AssertionError("a run was made")

    monkeypatch.setattr(planning, "resolve", refuse)
    monkeypatch.setattr(planning, "find", refuse)
    gamma = {"algorithm": {"gamma": list(range(6_000))}}
    names = {f"x{i}": [0, 1] for i in range(20_000)}
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"a": deep}
    most = "a sweep has at most 10,000 runs."
    for changes, said in (
        ({"seeds": 10**12}, f"seeds is 1,000,000,000,000: {most}"),
        ({"seeds": list(range(60_000))}, f"seeds has 60,000 entries: {most}"),
        ({"seeds": [0] * 60_000}, f"seeds has 60,000 entries: {most}"),
        ({"methods": ["ppo"] * 60_000}, f"methods has 60,000 entries: {most}"),
        ({"games": ["maze"] * 60_000}, f"games has 60,000 entries: {most}"),
        ({"envs": ["CartPole-v1"] * 60_000}, f"envs has 60,000 entries: {most}"),
        ({"levels": list(range(60_000))}, f"levels has 60,000 entries: {most}"),
        ({"games": "all", "seeds": 9_000}, "this sweep has 288,000 runs; the most is 10,000."),
        ({"grid": gamma}, "this sweep has 12,000 runs; the most is 10,000."),
        ({"levels": list(range(100)), "grid": {"algorithm": {"gamma": list(range(60))}}}, "this sweep has 12,000 runs"),
        ({"variants": {f"v{i}": {} for i in range(9_000)}}, "this sweep has 18,000 runs; the most is 10,000."),
        ({"grid": names}, "this sweep has more than 1,000,000,000,000,000,000 runs; the most is 10,000."),
        ({"set": deep}, "its tables are nested too deeply."),
    ):
        with pytest.raises(BadInput) as error:
            planned(**{"seeds": 1, "games": "maze"} | changes)
        assert said in str(error.value)


def test_settings_of_the_command_come_over_the_files(tmp_path: Path) -> None:
    file = 'methods = "ppo"\ngames = "maze"\n[set]\nmachine.threads = 1\nalgorithm.E_pi = 2\n'
    (tmp_path / "own.toml").write_text(file)
    plan = read(str(tmp_path / "own.toml"), {"machine.threads": "3", "env.num_envs": "32"})
    (job,) = plan.jobs
    assert (job.config.machine.threads, job.config.env.num_envs, job.config.algorithm.E_pi) == (3, 32, 2)
    again = expand(plan.name, json.loads(json.dumps(plan.source)), "sweep.json")  # as `status` reads it
    assert again.jobs == plan.jobs
    assert {job.config.steps for job in read("laptop", {"steps": "4096"}).jobs} == {4096}
    with pytest.raises(BadInput, match="steps must be whole numbers"):
        read("laptop", {"steps": "many"})
    with pytest.raises(BadInput, match="all cores of whatever machine"):
        read("laptop", {"machine.threads": "0"})


def test_settings_of_the_command_come_over_those_of_a_method_and_never_silently_under_a_variants(
    tmp_path: Path,
) -> None:
    lines = [
        'methods = ["ppo", "dcpg"]', 'games = "maze"', "[set]", "algorithm.gamma = 0.9", "[set.dcpg]",
        "algorithm.gamma = 0.99", "algorithm.N_pi = 4", "[variants.dcpg]", "wide = {network.width = 2}",
    ]  # fmt: skip
    file = tmp_path / "own.toml"
    file.write_text("\n".join(lines))
    plan = read(str(file), {"algorithm.gamma": "0.5"})
    assert {(job.label, job.config.algorithm.gamma) for job in plan.jobs} == {("ppo", 0.5), ("dcpg-wide", 0.5)}
    assert {job.config.algorithm.N_pi for job in plan.jobs if job.config.method == "dcpg"} == {4}
    assert expand(plan.name, json.loads(json.dumps(plan.source)), "sweep.json").jobs == plan.jobs
    assert {job.config.algorithm.gamma for job in read(str(file)).jobs} == {0.9, 0.99}
    file.write_text(file.read_text().replace("network.width = 2", "steps = 512"))
    with pytest.raises(BadInput, match="steps is given on the command line and in"):
        read(str(file), {"steps": "1024"})
    file.write_text(file.read_text().replace("steps = 512", "network.width = 2"))
    with pytest.raises(BadInput, match=r"network\.width is given on the command line and in \[variants\]; choose one"):
        read(str(file), {"network.width": "3"})


@pytest.mark.parametrize("key", ["methods", "games"])
def test_what_a_plan_needs(key: str) -> None:
    with pytest.raises(BadInput, match=f"{key} is missing"):
        expand("less", {name: value for name, value in TINY.items() if name != key}, "less.toml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"methods = ", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"a = " + b"[" * 100_000, "is not TOML"),
        (b"# " + b"x" * 1_000_000, "a sweep is a small file"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(BadInput, match=said):
        read(str(tmp_path / "bad.toml"))


def test_sweeps_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="Unknown sweep 'tabel1'; did you mean 'table1'"):
        read("tabel1")
    for path in ("none.toml", "../table1", "named/table1", "/etc"):
        with pytest.raises(BadInput, match="There is no file"):
            read(path)


def test_odd_and_long_values_become_hashes(tmp_path: Path) -> None:
    many = ",".join(map(str, range(100)))
    plan = planned(
        grid={
            "machine": {"device": ["cuda:1", "../../etc;$(x)"]},
            "levels": {"seeds": [many, "1"]},
            "evaluation": {"max_steps": [12, 13]},
        }
    )
    names = [job.name for job in plan.jobs]
    assert len(set(names)) == len(names) == 32
    directory = SweepDirectory(tmp_path)
    for name in names:
        assert directory.run(name).parent == tmp_path / "runs"
        assert directory.log(name).parent == tmp_path / "logs"
        assert not set(name) & set("/;$() ")
    assert any(name.endswith("seeds=1-max_steps=13-1") for name in names)
    assert [job.name for job in planned(grid={"machine": {"device": ["cuda:1", "../../etc;$(x)"]}}).jobs] != names
