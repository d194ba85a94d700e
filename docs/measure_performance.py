"""The figures of docs/performance.md and docs/analyses/stiffness.md that `dcpg bench` does not print.

    python docs/measure_performance.py                    # all of them, about half an hour at the paper's sizes
    python docs/measure_performance.py stiffness          # one of: stiffness, discriminator, settings, precision
    python docs/measure_performance.py --preset laptop    # at smaller sizes

stiffness       a measurement of value stiffness, against a training pass of the same value network on the same states
discriminator   what DDCPG's discriminator costs on top of DCPG
settings        what DCPG costs with one setting changed
precision       how far 200 optimiser steps of DCPG's auxiliary phase part in bfloat16 and float32; to be measured where
                bfloat16 is native
"""

from __future__ import annotations

import argparse
from statistics import median

import torch
from torch import Tensor

from dcpg.config.build import known_spaces
from dcpg.config.resolve import resolve
from dcpg.core.stiffness import states_and_targets, stiffness
from dcpg.machine.automatic import settled
from dcpg.machine.needs import needs_of
from dcpg.tools.bench import DEFAULT_METHODS, GAME, bench
from dcpg.tools.measurement import TURNS, Measurement, seconds_of

STATES = 1024  # of a sample; memory and time per state do not depend on their number
PAPER_STATES = 16_384  # of a measurement in the paper
PARTED, STRIDE = 200, 13  # optimiser steps after which precisions are compared, on every 13th frame of a new rollout
RATE = 180.0  # GFLOP/s, to which milliseconds are scaled
SETTINGS = (
    "env.num_envs=16", "env.num_envs=128", "rollout_length=64", "rollout_length=512", "algorithm.N_pi=8",
    "algorithm.N_pi=128", "network.channels=8,16,16", "network.channels=32,64,64",
)  # fmt: skip


def stiffness_cost(measurement: Measurement) -> tuple[float, float]:
    """Training passes that a measurement of value stiffness takes, and seconds for the paper's states."""
    network, head, chunk = measurement.network, measurement.method.advantages, measurement.config.machine.chunk
    frames, returns = (x[:STATES] for x in states_and_targets(measurement.tau, head))
    encoder = network.get_submodule(network.encoder_of[head])

    def training_pass() -> None:
        for part, target in zip(frames.split(chunk), returns.split(chunk), strict=True):
            value = network.get_submodule(head)(encoder(part)).squeeze(1)
            (0.5 * (value - target).square()).sum().backward()

    def measure() -> None:
        stiffness(network, head, frames, returns, chunk)

    training_pass()
    turns = [(seconds_of(measure), seconds_of(training_pass)) for _ in range(TURNS)]
    passes = median(measuring / training for measuring, training in turns)
    return passes, median(measuring for measuring, _ in turns) * PAPER_STATES / len(frames)


def print_stiffness(preset: str) -> None:
    """One row for each of the default methods."""
    print(f"A measurement of value stiffness on {PAPER_STATES:,} states\n")
    print("| method | training passes | seconds |\n|---|---|---|")
    for name in DEFAULT_METHODS:
        passes, seconds = stiffness_cost(Measurement(resolve(name, GAME, preset=preset)))
        print(f"| `{name}` | {passes:.2f} | {seconds:.1f} |")


def print_discriminator(preset: str) -> None:
    """The costs of the two methods in matrix multiplies, because the machine's speed differs between them."""
    methods = bench(("dcpg", "ddcpg"), preset, {}, memory=False)["methods"]
    dcpg, ddcpg = (methods[name]["ms_per_step"]["cycle"] * methods[name]["matmul_gflops"] for name in methods)
    print(f"\nddcpg costs {ddcpg / dcpg - 1:+.1%} over dcpg, at equal matrix-multiply rates")


def print_settings(preset: str) -> None:
    """One row for each change of a setting."""
    print(f"\nDCPG with one setting changed, at {RATE:.0f} GFLOP/s\n")
    print("| setting | ms per step | MFLOP per step | share of the rate | memory bound, GB |\n|---|---|---|---|---|")
    for pair in ("", *SETTINGS):
        settings = dict([pair.split("=")]) if pair else {}
        config = settled(resolve("dcpg", GAME, preset=preset, settings=settings))
        spaces = known_spaces(config)
        assert spaces is not None
        found = bench(("dcpg",), preset, settings, memory=False)["methods"]["dcpg"]
        ms = found["ms_per_step"]["cycle"] * found["matmul_gflops"] / RATE
        print(
            f"| `{pair or preset}` | {ms:.1f} | {found['mflop_per_step']:,.0f} | {found['ratio']['cycle']:.0%} | "
            f"{needs_of(config, spaces).memory / 1e9:.1f} |"
        )


def parted(preset: str, steps: int) -> dict[str, tuple[float, float, float]]:
    """How far runs part from float32 in some optimiser steps of one auxiliary phase, from the same weights and B.

    For float32 in chunks of another size, which differs by rounding alone, for bfloat16, and for the unchanged network:
    the mean |difference| of values in their standard deviations, the mean KL divergence of the policies, and the
    distance of the weights as a share of the way that float32 went.
    """
    start = Measurement(resolve("dcpg", GAME, preset=preset, settings={"machine.precision": "fp32"}))
    chunk, N_pi = start.config.machine.chunk, start.method.N_pi
    smaller = min(chunk, len(start.tau.actions) * start.config.algorithm.segments) // 3
    for rollout in range(N_pi):  # a real phase: the policy acts and learns, then B is full
        tau = start.trainer.collector.sample(rollout)
        for line in start.method.policy_phase:
            minibatches = start.algorithm.loader.open(line, tau, rollout, 1)
            for number in range(len(minibatches)):
                start.step(line, minibatches.load(0, number))
        start.B.add(rollout, tau)
    start.algorithm.remember()
    frames = start.trainer.collector.sample(N_pi).frames.flatten(0, 1)[::STRIDE].numpy()
    weights = {name: value.clone() for name, value in start.network.state_dict().items()}

    def trained(precision: str, chunk: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        settings = {"machine.precision": precision, "machine.chunk": chunk}
        run = Measurement(resolve("dcpg", GAME, preset=preset, settings=settings))
        run.network.load_state_dict(weights)
        (line,) = run.method.auxiliary_phase
        minibatches = run.algorithm.loader.open(line, start.B, N_pi - 1, 2)
        for step in range(steps):
            run.step(line, minibatches.load(*divmod(step, len(minibatches))))
        log_policy, values = run.actor(frames)
        return log_policy, values["value"], torch.cat([p.detach().flatten() for p in run.network.parameters()])

    pi, V, end = trained("fp32", chunk, steps)
    begin = torch.cat([weights[name].flatten() for name, _ in start.network.named_parameters()])
    others = {
        "float32 in smaller chunks": trained("fp32", smaller, steps),
        "bfloat16": trained("bf16", chunk, steps),
        "before these steps": trained("fp32", chunk, 0),
    }
    return {
        name: (
            float((other_V - V).abs().mean() / V.std()),
            float((pi.exp() * (pi - other_pi)).sum(1).mean()),
            float((other_end - end).norm() / (begin - end).norm()),
        )
        for name, (other_pi, other_V, other_end) in others.items()
    }


def print_precision(preset: str) -> None:
    """One row for each way to compute."""
    print(f"\n{PARTED} optimiser steps of DCPG's auxiliary phase, compared with float32\n")
    print("| computed in | values apart, deviations | policies apart, KL | weights apart, share of the way |")
    print("|---|---|---|---|")
    for name, (values, kl, weights) in parted(preset, PARTED).items():
        print(f"| {name} | {values:.4f} | {kl:.2e} | {weights:.3f} |")


FIGURES = {
    "stiffness": print_stiffness, "discriminator": print_discriminator, "settings": print_settings,
    "precision": print_precision,
}  # fmt: skip

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", nargs="?", choices=FIGURES)
    parser.add_argument("--preset", default="paper")
    options = parser.parse_args()
    for figure in [options.figure] if options.figure else FIGURES:
        FIGURES[figure](options.preset)
