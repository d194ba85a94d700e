"""The paper's Tables 4 and 5 for any method and setting: its hyper-parameters under the paper's names."""

from __future__ import annotations

from dataclasses import dataclass

from dcpg.config.command import written
from dcpg.config.schema import Config
from dcpg.settings import dotted
from dcpg.text import csv_text, tex


@dataclass(frozen=True)
class Hyperparameters:
    """One of the two tables."""

    name: str  # of its files
    title: str
    rows: list[tuple[str, str]]  # hyper-parameter, value

    def csv(self) -> str:
        return csv_text([("hyper-parameter", "value"), *self.rows])

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", "| hyper-parameter | value |", "|---|---|"]
        return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in self.rows)]) + "\n"

    def latex(self) -> str:
        """Needs the package booktabs."""
        lines = ["\\begin{table}[t]", "\\centering", f"\\caption{{{tex(self.title)}.}}", "\\begin{tabular}{lc}"]
        lines += ["\\toprule", "Hyper-parameter & Value \\\\", "\\midrule"]
        lines += [f"{tex(name)} & {tex(value)} \\\\" for name, value in self.rows]
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"


def papers_tables(config: Config) -> list[Hyperparameters]:
    """Table 4, what all methods share, and Table 5, what belongs to this one; values that are fixed are shown too."""
    own = {name: written(value) for name, value, _ in dotted(config.algorithm)}
    shared = [
        ("Discount factor (gamma)", own.pop("gamma")),
        ("GAE smoothing parameter (lambda)", own.pop("lam")),
        ("Timesteps per rollout", str(config.rollout_length)),
        ("Epochs per rollout (E_pi)", own["E_pi"]),
        ("Minibatches per epoch", own.pop("minibatches")),
        ("Entropy bonus", own.pop("entropy")),
        ("PPO clip range (epsilon)", own.pop("clip")),
        ("Reward normalisation", "yes"),
        ("Learning rate", own.pop("learning_rate")),
        ("Adam's epsilon", own.pop("adam_eps")),
        ("Largest norm of a gradient", own.pop("max_grad_norm")),
        ("Workers", str(config.shards)),
        ("Environments per worker", str(config.env.num_envs // config.shards)),
        ("Total timesteps", f"{config.steps:,}"),
        ("LSTM", "no"),
        ("Frame stack", "no" if config.env.frame_stack == 1 else str(config.env.frame_stack)),
    ]
    method = config.declared()
    first = own.pop("N_pi_first", "")
    rollouts = own.pop("N_pi", "") or str(method.length_of(0))
    specific = [
        ("Policy phases per auxiliary phase (N_pi)", f"{first}, then {rollouts}" if first else rollouts),
        ("Policy epochs (E_pi)", own.pop("E_pi")),
        ("Value epochs (E_V)", own.pop("E_V", "") or _value_epochs(config)),
    ]
    if "E_aux" in own:
        segments = int(own.pop("segments"))
        specific += [
            ("Auxiliary epochs (E_aux)", own.pop("E_aux")),
            ("Policy regulariser coefficient (beta_pi)", own.pop("beta_pi")),
            ("Minibatches per auxiliary epoch per N_pi", written(config.env.num_envs / segments).removesuffix(".0")),
        ]
    specific += own.items()
    return [
        Hyperparameters("table4", f"Hyper-parameters that {config.method} shares with the other methods", shared),
        Hyperparameters("table5", f"Hyper-parameters of {config.method}", specific),
    ]


def _value_epochs(config: Config) -> str:
    """The epochs of the line of the policy phase that trains the value that advantages are computed with."""
    for line in config.declared().policy_phase:
        if any(term.startswith("J_V") for term in line.terms):
            return str(line.epochs)
    return "0: the value learns in the auxiliary phase"
