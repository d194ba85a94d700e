"""Methods and encoders from outside the package: found, recorded, compared, and never imported from a record."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dcpg
from dcpg.config.build import build_network
from dcpg.config.explain import explain
from dcpg.config.resolve import resolve
from dcpg.core.stiffness import stiffness
from dcpg.errors import BadInput
from dcpg.machine.needs import needs_of
from dcpg.methods import ENCODERS, METHODS, Encoder, Impala, Net, encoder, plugins, scaled
from dcpg.runs.collection import read
from dcpg.runs.comparable import variant_of
from dcpg.seeding import generator
from tests.cli.test_cli import run as command
from tests.core.test_stiffness import gradients, pairs
from tests.small import SMALL

VARIANT = """
from dataclasses import dataclass, replace
from dcpg.methods import DCPG, Method, declare, method, setting

@dataclass(frozen=True)
class Mine(DCPG):
    strength: float = setting(0.25, "ours", low=0)

@method("mine", Mine)
def mine(h: Mine) -> Method:
    \"\"\"DCPG that holds its value less.\"\"\"
    base = declare("dcpg", h)
    (line,) = base.policy_phase
    return replace(base, policy_phase=(replace(line, terms={**line.terms, "C_V": (h.strength, line.terms["C_V"][1])}),))
"""
ENCODER = """
from torch import nn
from dcpg.methods import Encoder, encoder, scaled

@encoder("linear")
class Linear(Encoder):
    def __init__(self, shape, net):
        super().__init__(shape, net)
        self.fc = nn.Linear(shape[0] * shape[1] * shape[2], net.features)

    def forward(self, frames):
        return self.fc(scaled(frames).flatten(1)).relu()
"""
GRID = """
import gymnasium, numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

class Grid(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 2, (8, 8, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return np.full((8, 8, 1), 2, np.uint8), {}

    def step(self, action):
        return np.full((8, 8, 1), action, np.uint8), float(action), False, True, {}

def make(num_envs, seed):
    return SyncVectorEnv([Grid] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
"""
MODULES = ("mine", "linear", "other_package", "trap", "prompt")
QUICK = {"evaluation.max_steps": 20, "evaluation.episodes": 2, **SMALL}


@pytest.fixture(autouse=True)
def tables_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins and ends with the package's own methods and encoders."""
    before = [(table, dict(table), dict(table.declared)) for table in (METHODS, ENCODERS)]
    for name in ("LOADED", "_brought", "_failures", "_imported"):
        monkeypatch.setattr(plugins, name, {})
    monkeypatch.setattr(plugins, "_looked_everywhere", False)
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    path = list(sys.path)
    yield
    for table, entries, declared in before:
        table.clear()
        table.update(entries)
        table.declared = declared
    sys.path[:] = path
    for name in [name for name in sys.modules if name in MODULES or name.startswith("dcpg_file_")]:
        del sys.modules[name]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(VARIANT)
    (tmp_path / "linear.py").write_text(ENCODER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def forget() -> None:
    """As in a new process."""
    for table in (METHODS, ENCODERS):
        for name in [name for name in table if not table.is_own(name)]:
            del table[name]
    plugins.LOADED.clear()
    plugins._brought.clear()
    plugins._imported.clear()
    plugins._looked_everywhere = False


def trained(files: Path, **more: Any) -> Path:
    plugins.load("mine.py")
    out = files / "runs" / "mine"
    dcpg.train("mine", "coinrun", preset="tiny", steps=256, out=out, settings=QUICK | more, progress=False)
    return out


def test_a_file_is_loaded_recorded_and_named_when_it_is_missing(files: Path) -> None:
    out = trained(files)
    plain = json.loads((out / "config.json").read_text())
    digest = plugins.sha256_of(files / "mine.py")
    assert plain["plugins"] == [{"kind": "method", "name": "mine", "plugin": str(files / "mine.py"), "sha256": digest}]
    assert plain["method_values"]["algorithm.strength"] == 0.25
    assert "DCPG that holds its value less." in plain["explained"]
    forget()
    with pytest.raises(BadInput, match=r"'mine' is not part of dcpg; it was declared in .*mine\.py: import that"):
        dcpg.load(out)
    assert "mine" not in METHODS
    plugins.load("mine.py")
    assert dcpg.load(out).config.algorithm.strength == 0.25


def test_commands_name_the_option(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = trained(files)
    capsys.readouterr()
    forget()
    for words in (("resume", str(out)), ("eval", str(out)), ("export", str(out)), ("record", str(out))):
        code, _, error = command(capsys, *words)
        assert (code, error.count("\n")) == (2, 1)
        assert f"give it with --plugin {files / 'mine.py'}" in error
    code, said, _ = command(capsys, "eval", str(out), "--plugin", "mine.py", "--json")
    assert (code, len(json.loads(said)["returns"])) == (0, 2)


def test_a_changed_file_stops_resume_and_warns_others(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = trained(files)
    (files / "mine.py").write_text(VARIANT + "# changed\n")
    forget()
    plugins.load("mine.py")
    with pytest.raises(BadInput, match="cannot be resumed: the method 'mine' is not the one"):
        dcpg.resume(out, steps=512)
    capsys.readouterr()
    dcpg.evaluate(out)
    assert "warning: the method 'mine' is not the one that the run was made with" in capsys.readouterr().err
    (files / "mine.py").write_text(VARIANT)
    forget()
    plugins.load("mine.py")
    assert dcpg.resume(out, steps=512, progress=False).summary["steps"] == 512


def test_nothing_is_imported_because_a_run_names_it(files: Path) -> None:
    out = trained(files)
    plain = json.loads((out / "config.json").read_text())
    (files / "trap.py").write_text(f"open({str(files / 'sprung')!r}, 'w')\n{VARIANT}")
    for source in (str(files / "trap.py"), "trap"):
        plain["plugins"][0]["plugin"] = source
        (out / "config.json").write_text(json.dumps(plain))
        forget()
        for call in (dcpg.load, dcpg.resume, dcpg.evaluate, dcpg.record, dcpg.export):
            with pytest.raises(BadInput, match=r"it was declared in .*trap"):
                call(out)
        records, _ = read([out])
        assert [record.label for record in records] == ["mine"]
    assert not (files / "sprung").exists()


def test_a_report_needs_no_plugin(files: Path, tmp_path: Path) -> None:
    out = trained(files)
    plugins.load("linear.py")
    more = {"algorithm.strength": 0.5, "network.encoder": "linear"}
    dcpg.train(
        "mine", "coinrun", preset="tiny", steps=256, out=files / "runs" / "more", settings=QUICK | more, progress=False
    )
    dcpg.train("dcpg", "coinrun", preset="tiny", steps=256, out=files / "runs/dcpg", settings=QUICK, progress=False)
    forget()
    from dcpg.report.write import write_report

    report = write_report([files / "runs"], tmp_path / "report")
    assert report.comparison.labels == ["dcpg", "mine", "mine [strength=0.5, encoder=linear]"]
    assert [record.finished for record in report.comparison.records] == [True] * 3
    page = json.loads((tmp_path / "report/report.json").read_text())
    assert "0.25 C_V" in page["algorithms"]["mine"]
    assert "it is linear" in page["algorithms"]["mine [strength=0.5, encoder=linear]"]
    assert out.is_dir()


def test_a_variable_and_an_entry_point_are_used_only_for_unknown_names(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugins.VARIABLE, f"mine.py{':'}linear")  # a file and a module in the current folder
    resolve("dcpg", "maze")
    assert plugins.LOADED == {}
    assert resolve("mine", "maze").algorithm.strength == 0.25
    assert set(plugins.LOADED) == {str(files / "mine.py"), "linear"}
    assert plugins.to_send("mine", "linear")[1] == {
        "source": "linear", "sha256": plugins.sha256_of(files / "linear.py"), "folder": str(files)
    }  # fmt: skip
    forget()
    monkeypatch.delenv(plugins.VARIABLE)
    sys.modules.pop("linear")
    (files / "other_package.py").write_text(VARIANT)
    (files / "leaving.py").write_text("import sys; sys.exit(0)")
    found = [
        EntryPoint("broken", "no_such_module", plugins.GROUP),
        EntryPoint("leaving", "leaving", plugins.GROUP),
        EntryPoint("mine", "other_package", plugins.GROUP),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found if group == plugins.GROUP else [])
    assert "mine" not in METHODS
    assert resolve("mine", "maze").method == "mine"
    with pytest.raises(BadInput, match=r"Unknown method 'main'.*The plugin broken \(no_such_module\) cannot be loaded"):
        resolve("main", "maze")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / 0", "wrong.py cannot be loaded: ZeroDivisionError: division by zero (wrong.py, line 1)"),
        ("import sys; sys.exit(3)", "cannot be loaded: SystemExit: 3"),
        ("def", "cannot be loaded: SyntaxError"),
        ("import nothing_like_this", "cannot be loaded: ModuleNotFoundError"),
        (VARIANT.replace('"mine"', '"ppo"'), "declares the method 'ppo', which"),
        (VARIANT.replace('"mine"', '"../mine"'), "'../mine' cannot name the method"),
        ("from dcpg.methods import encoder\n@encoder('x')\nclass X: pass", "needs a subclass of dcpg.methods.Encoder"),
    ],
)
def test_a_plugin_that_does_not_load_is_one_sentence(
    files: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    (files / "wrong.py").write_text(text)
    code, out, error = command(capsys, "explain", "mine", "--plugin", "wrong.py")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert expected in error


def test_missing_files_and_modules(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source, expected in (
        ("none.py", "There is no file none.py"),
        ("", "got ''"),
        ("a:b", "got 'a:b'"),
        ("no_module", "no_module cannot be loaded"),
    ):
        code, _, error = command(capsys, "methods", "--plugin", source)
        assert (code, expected in error) == (2, True)


def test_the_first_of_two_files_keeps_a_name(files: Path) -> None:
    (files / "twin.py").write_text(VARIANT)
    plugins.load("mine.py")
    with pytest.raises(BadInput, match=r"twin\.py declares the method 'mine', which .*mine\.py has declared already"):
        plugins.load("twin.py")
    plugins.load("mine.py")
    (files / "mine.py").write_text(VARIANT.replace("0.25", "0.75"))  # edited in a notebook, say
    plugins.load("mine.py")
    assert resolve("mine", "maze").algorithm.strength == 0.75


def test_another_file_than_the_drivers_is_refused(files: Path) -> None:
    plugins.load("mine.py")
    sent = plugins.to_send("mine", "impala")
    forget()
    plugins.load_sent(sent)
    assert "mine" in METHODS
    (files / "mine.py").write_text(VARIANT + "\n")
    forget()
    with pytest.raises(BadInput, match="is not the same file here as where the command was given"):
        plugins.load_sent(sent)


def test_what_reuses_the_packages_own_function_or_class_is_a_plugin_too(files: Path) -> None:
    (files / "reuse.py").write_text(
        "from dcpg.methods import METHODS, PPO, Impala, encoder, method\n"
        "method('wide-ppo', PPO, {'network.width': 2})(METHODS['ppo'].declare)\nencoder('mine')(Impala)\n"
    )
    plugins.load("reuse.py")
    assert [one["name"] for one in plugins.used("wide-ppo", "mine")] == ["wide-ppo", "mine"]
    assert {one["source"] for one in plugins.to_send("wide-ppo", "mine")} == {str(files / "reuse.py")}
    assert plugins.used("ppo", "impala") == []


def test_what_defines_a_method_is_no_variant_of_it_whatever_the_preset_says(files: Path) -> None:
    text = VARIANT.replace('@method("mine", Mine)', '@method("mine", Mine, {"algorithm.N_pi": 1})')
    (files / "mine.py").write_text(text)
    out = trained(files)
    forget()
    (record,), problems = read([out])
    assert (record.label, problems) == ("mine", [])
    plain = json.loads((out / "config.json").read_text())
    del plain["method_values"]
    (out / "config.json").write_text(json.dumps(plain))
    records, problems = read([out])
    assert records == []
    assert "the values of mine are not recorded" in problems[0].text
    for hostile in ("__dataclass_fields__", "__init__", "with_values", "self"):
        plain |= {"method_values": {"algorithm.gamma": 1}, "algorithm": {hostile: 1}}
        (out / "config.json").write_text(json.dumps(plain))
        assert read([out])[0] == []


def test_a_setting_that_ends_like_a_shared_one_is_named_whole(files: Path) -> None:
    (files / "mine.py").write_text(VARIANT.replace("strength", "width"))
    plugins.load("mine.py")
    found = {
        name: variant_of(resolve("mine", "maze", settings={name: 2}), {})
        for name in ("algorithm.width", "network.width", "algorithm.N_pi")
    }
    assert found == {
        "algorithm.width": "mine [algorithm.width=2.0]",
        "network.width": "mine [network.width=2]",
        "algorithm.N_pi": "mine [N_pi=2]",
    }


@pytest.mark.faults
def test_a_report_notes_versions_of_a_plugin(files: Path) -> None:
    from dcpg.report.comparison import note_other_plugins

    first = trained(files)
    (files / "mine.py").write_text(VARIANT + "# changed\n")
    plugins.load("mine.py")
    for seed in (1, 2):
        dcpg.train(
            "mine", "coinrun", preset="tiny", steps=256, seed=seed, out=files / f"runs/{seed}", settings=QUICK,
            progress=False,
        )  # fmt: skip
    records, problems = read([files / "runs"])
    note_other_plugins(records, problems)
    assert [(problem.path, "had another version of the method mine" in problem.text) for problem in problems] == [
        (first, True)
    ]


def test_a_method_without_a_file_trains_here_but_is_sent_nowhere(tmp_path: Path) -> None:
    sys.modules["prompt"] = ModuleType("prompt")  # dataclasses look up their module
    exec(compile(VARIANT, "<prompt>", "exec"), vars(sys.modules["prompt"]))
    run = dcpg.train("mine", "maze", preset="tiny", steps=128, out=tmp_path / "run", settings=QUICK, progress=False)
    assert json.loads((run.directory / "config.json").read_text())["plugins"][0]["sha256"] == ""
    with pytest.raises(BadInput, match="is declared in no file"):
        plugins.to_send("mine", "impala")


# -- encoders


def declared() -> type[Encoder]:
    @encoder("strided")
    class Strided(Encoder):
        """Convolutions of stride 2, a norm, linear."""

        def __init__(self, shape: tuple[int, ...], net: Net) -> None:
            super().__init__(shape, net)
            size = ((shape[0] + 1) // 2) * ((shape[1] + 1) // 2)
            self.conv = nn.Conv2d(shape[2], net.wide_channels[0], 5, stride=2, padding=2)
            self.norm = nn.GroupNorm(1, net.wide_channels[0])
            self.fc = nn.Linear(net.wide_channels[0] * size, net.features)

        def forward(self, frames: Tensor) -> Tensor:
            x = self.norm(self.conv(scaled(frames).permute(0, 3, 1, 2))).relu()
            return self.fc(x.flatten(1)).tanh()

    return Strided


def test_methods_explain_needs_and_stiffness_follow_an_encoder() -> None:
    kind = declared()
    settings = {"network.encoder": "strided", "network.channels": "4", "network.features": 16}
    config = resolve("dcpg", "maze", preset="tiny", settings=settings | {"machine.chunk": 32})
    assert "it is strided: 4 channels, 16 features" in explain(config)
    shape = (32, 32, 3)
    network = build_network(config, shape, 15)
    assert isinstance(network.get_submodule("theta"), kind)
    # 4 x 16 x 16 numbers: the convolution's output, which the norm keeps, and the ReLU's; the frame; the features
    held, passing = kind.graph_bytes(shape, config.network, 4)
    assert 4 * (32 * 32 * 3 + 2 * 1024) <= held <= 4 * (32 * 32 * 3 + 4 * 1024)
    assert passing == 3 * 4 * 32 * 32 * 3
    from dcpg.config.build import known_spaces

    spaces = known_spaces(config)
    assert spaces is not None
    assert needs_of(config, spaces).memory > 0.8e9

    frames = torch.randint(0, 256, (7, *shape), generator=generator(0, "frames"), dtype=torch.uint8)
    returns = torch.randn(7, generator=generator(0, "returns"))
    assert not kind.walks
    found = stiffness(network, "value", frames, returns, 3)
    assert found.states == 7
    assert found.stiffness == pytest.approx(pairs(gradients(network, "value", frames, returns)), abs=2e-5)


def test_another_forward_does_not_inherit_what_described_the_first() -> None:
    class Doubled(Impala):
        def forward(self, frames: Tensor) -> Tensor:
            return 2 * super().forward(frames)

    class Wider(Impala):
        pass

    assert (Doubled.walks, Doubled.first) == (False, "")
    assert (Wider.walks, Wider.first) == (True, Impala.first)
    assert Doubled.graph_bytes((16, 16, 3), Net(), 4) != Impala.graph_bytes((16, 16, 3), Net(), 4)


def test_an_encoder_that_forgets_a_weight_is_refused() -> None:
    kind = declared()
    kind.initialise = lambda self, generator: nn.init.zeros_(self.fc.weight)  # type: ignore[method-assign]
    config = resolve("ppo", "maze", preset="tiny", settings={"network.encoder": "strided"})
    with pytest.raises(BadInput, match=r"Strided\.initialise leaves theta\.conv\.weight without finite values"):
        build_network(config, (32, 32, 3), 15)


def test_default_weights_follow_from_the_seed_alone() -> None:
    declared()
    config = resolve("ppo", "maze", preset="tiny", settings={"network.encoder": "strided"})
    torch.manual_seed(1)
    one = build_network(config, (32, 32, 3), 15).state_dict()
    torch.manual_seed(2)
    two = build_network(config, (32, 32, 3), 15).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert one["theta.norm.weight"].eq(1).all()


def test_a_schedule_may_be_a_function_of_the_phase() -> None:
    from dataclasses import replace

    from dcpg.methods import DCPG, declare

    growing = replace(declare("dcpg", DCPG()), N_pi=lambda phase: 2**phase)
    assert [rollout for rollout in range(1, 16) if growing.ends_phase(rollout)] == [1, 3, 7, 15]
    assert growing.lengths(8) == {1, 2, 4, 8}
    listed = declare("dcpg", DCPG(N_pi=4, N_pi_first=(1, 2)))
    assert [rollout for rollout in range(1, 13) if listed.ends_phase(rollout)] == [1, 3, 7, 11]
    with pytest.raises(BadInput, match="N_pi of phase 0 is 0; a phase has a whole number"):
        replace(growing, N_pi=lambda phase: 0).ends_phase(1)
    settings = {"algorithm.N_pi_first": "3", "algorithm.segments": 16}
    with pytest.raises(BadInput, match="segments=16 does not divide the 24 segments"):
        resolve("dcpg", "maze", preset="tiny", settings=settings)


def test_explain_leaves_out_what_a_term_does_not_say(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A term with an equation but no source, one with nothing but a value, and one with nothing at all."""
    (files / "mine.py").write_text(
        VARIANT.replace(
            "terms={**line.terms, ",
            'terms={**line.terms, "a": (1.0, told), "b": (1.0, partial(silent, c=2)), "d": (1.0, lambda o, b: 0.0), ',
        )
        + '\nfrom functools import partial\ndef told(out, batch):\n    """Says.\n\n    Equation: 1\n    """\n'
        + "def silent(out, batch, c): ...\n"
    )
    _, said, _ = command(capsys, "explain", "mine", "--plugin", "mine.py")
    lines = said.splitlines()
    start = lines.index("  a     Says.")
    assert lines[start : start + 5] == [
        "  a     Says.", "        1", "  b     (c = 2)", "  d", "  J_V   The value objective.",
    ]  # fmt: skip
    assert [line for line in lines if line.strip() == "source:"] == []


@pytest.mark.parametrize("layer", ["nn.Dropout(0.3)", "nn.BatchNorm1d(net.features)"])
def test_layers_that_draw_or_remember_are_refused(layer: str, files: Path) -> None:
    """Neither a seed nor a resume would repeat them."""
    body = ENCODER.replace("net.features)", f"net.features)\n        self.layer = {layer}")
    body = body.replace("return self.fc(", "return self.layer(self.fc(").replace(".relu()", ")")
    (files / "linear.py").write_text(body)
    plugins.load("linear.py")
    chosen = QUICK | {"network.encoder": "linear"}
    with pytest.raises(BadInput, match="draws random numbers or changes its own buffers") as refused:
        dcpg.train("ppo", "coinrun", preset="tiny", steps=128, out=files / "run", settings=chosen, progress=False)
    assert "LayerNorm" in str(refused.value)
    assert not (files / "run").exists()


def test_a_network_may_ask_for_what_its_environment_gives(files: Path) -> None:
    """Neither the check of its layers nor the time that is told shows it numbers that no environment has."""
    (files / "linear.py").write_text(
        ENCODER.replace("scaled(frames)", "nn.functional.one_hot(frames.long(), 3).float()[..., 0]")
    )
    (files / "grid.py").write_text(GRID)
    plugins.load("linear.py")
    chosen = {"evaluation.max_steps": 4, "evaluation.episodes": 2, "network.encoder": "linear", "env.timeout": 60}
    options = {"preset": "tiny", "out": files / "run", "settings": chosen}
    run = dcpg.train("ppo", env="grid.py:make", steps=128, **options)  # type: ignore[arg-type]
    assert dcpg.resume(run, env="grid.py:make", steps=256).summary["status"] == "finished"


def test_a_default_may_be_long_and_is_read_again(files: Path) -> None:
    long = VARIANT.replace("strength: float", 'words: str = setting("w" * 30_000, "ours")\n    strength: float')
    (files / "mine.py").write_text(long)
    out = trained(files)
    assert dcpg.resume(out, steps=384, progress=False).summary["steps"] == 384
    forget()
    assert [record.label for record in read([out])[0]] == ["mine"]


def test_a_default_that_could_not_be_read_again_is_refused(files: Path) -> None:
    (files / "mine.py").write_text(
        VARIANT.replace("strength: float", f"seeds: int = setting({2**70}, 'ours')\n    strength: float")
    )
    with pytest.raises(BadInput, match="could not be read again"):
        trained(files)
    assert not (files / "runs" / "mine").exists()
