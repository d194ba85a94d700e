"""The paper's Tables 4 and 5 as `dcpg config METHOD --paper` writes them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dcpg.cli.app import app
from dcpg.config.hyperparameters import papers_tables
from dcpg.config.resolve import resolve
from dcpg.methods import METHODS

# as the paper prints them
TABLE_4 = {
    "Discount factor (gamma)": "0.999", "GAE smoothing parameter (lambda)": "0.95", "Timesteps per rollout": "256",
    "Epochs per rollout (E_pi)": "3", "Minibatches per epoch": "8", "Entropy bonus": "0.01",
    "PPO clip range (epsilon)": "0.2", "Reward normalisation": "yes", "Learning rate": "0.0005", "Workers": "1",
    "Environments per worker": "64", "Total timesteps": "25,000,000", "LSTM": "no", "Frame stack": "no",
}  # fmt: skip
TABLE_5 = {
    "Policy phases per auxiliary phase (N_pi)": "32", "Policy epochs (E_pi)": "1", "Value epochs (E_V)": "1",
    "Auxiliary epochs (E_aux)": "6", "Policy regulariser coefficient (beta_pi)": "1.0",
    "Minibatches per auxiliary epoch per N_pi": "16",
}  # fmt: skip


def test_the_papers_tables_are_those_of_ppo_and_ppg() -> None:
    ours = ("Adam's epsilon", "Largest norm of a gradient")  # which the paper does not print
    shared, _ = papers_tables(resolve("ppo", "bigfish"))
    assert {name: value for name, value in shared.rows if name not in ours} == TABLE_4
    _, specific = papers_tables(resolve("ppg", "bigfish"))
    assert dict(specific.rows) == TABLE_5


def test_what_a_method_fixes_is_shown() -> None:
    daac = dict(papers_tables(resolve("daac", "bigfish"))[1].rows)
    assert (daac["Policy phases per auxiliary phase (N_pi)"], daac["Value epochs (E_V)"]) == ("1", "9")
    assert daac["alpha_a"] == "0.25"
    dcpg = dict(papers_tables(resolve("dcpg", "bigfish"))[1].rows)
    assert dcpg["Value epochs (E_V)"] == "0: the value learns in the auxiliary phase"
    assert dcpg["beta_V"] == "1.0"
    scheduled = resolve("ddcpg", "bigfish", settings={"algorithm.N_pi_first": "4,8", "env.frame_stack": 3})
    shared, specific = (dict(table.rows) for table in papers_tables(scheduled))
    assert specific["Policy phases per auxiliary phase (N_pi)"] == "4,8, then 32"
    assert shared["Frame stack"] == "3"


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_of_a_method_is_in_one_of_the_tables(method: str) -> None:
    config = resolve(method, "bigfish")
    values = [value for table in papers_tables(config) for _, value in table.rows]
    assert str(config.algorithm.learning_rate) in values
    assert len(values) >= 19


def test_the_command_writes_files(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["config", "ppg", "--paper", "--out", str(tmp_path / "tables")])
    assert done.exit_code == 0
    assert "| Value epochs (E_V) | 1 |" in done.output
    with open(tmp_path / "tables" / "table5.csv", newline="") as file:
        assert dict(csv.reader(file)) == {"hyper-parameter": "value", **TABLE_5}
    tex = (tmp_path / "tables" / "table5.tex").read_text()
    assert "Value epochs (E\\_V) & 1 \\\\\n" in tex
    assert sorted(p.name for p in (tmp_path / "tables").iterdir()) == [
        "table4.csv", "table4.md", "table4.tex", "table5.csv", "table5.md", "table5.tex",
    ]  # fmt: skip
