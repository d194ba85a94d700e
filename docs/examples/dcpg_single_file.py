"""DCPG in one file: Algorithm 1 of "Rethinking Value Function Learning for Generalization in RL", without dynamics.

This script is for reading. It uses the paper's symbols and the line numbers of its Algorithm 1, in plain PyTorch, and
leaves out what a long run needs (checkpoints, a compressed buffer, GPUs); the library has all of that. With the same
seed and sizes it computes what the library computes, except for rounding; tests/docs/test_single_file.py checks that.

The idea: policy and value share one network, theta. After every rollout only the policy learns, while the value is held
in place. After every N_pi rollouts the value learns from all of them at once, while the policy is held in place. A
critic that is updated late and with more data memorises less of the few levels that it saw last.

    python docs/examples/dcpg_single_file.py --game starpilot --steps 100000 --seed 0 --size laptop

`--size paper` is the paper's setting; it needs some 10 GB of memory and, for all 25M steps, more than a week on a CPU.
"""

from __future__ import annotations

import argparse
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from dcpg.envs.procgen import Procgen
from dcpg.seeding import generator, rand_seed

ACTIONS = 15  # of every Procgen game


@dataclass(frozen=True)
class Settings:
    """The defaults are the paper's (Tables 4 and 5, Appendix D), or the authors' code where the paper is silent."""

    N: int = 64  # environments
    T: int = 256  # steps of each environment in a rollout
    levels: int = 200  # training levels
    frame_size: int = 64  # below 64, frames are averaged down
    channels: tuple[int, ...] = (16, 32, 32)  # one number for each stack of the encoder
    features: int = 256
    gamma: float = 0.999
    lam: float = 0.95  # lambda of GAE
    N_pi: int = 32  # rollouts in a policy phase
    E_pi: int = 1  # epochs over tau
    E_aux: int = 6  # epochs over B
    minibatches: int = 8  # in an epoch over tau
    segments: int = 4  # in a minibatch of B; a segment is the T steps of one environment in one rollout
    clip: float = 0.2  # epsilon of PPO
    entropy: float = 0.01
    beta_V: float = 1.0  # weight of C_V
    beta_pi: float = 1.0  # weight of C_pi
    learning_rate: float = 5e-4
    adam_eps: float = 1e-5
    max_grad_norm: float = 0.5


SIZES = {
    "paper": Settings(),
    "laptop": Settings(T=32, frame_size=32, channels=(8, 16, 16), N_pi=4, E_aux=2, segments=8),
    "tiny": Settings(N=8, T=16, frame_size=32, channels=(4, 8, 8), features=32, N_pi=2),  # for tests
}


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))). The skip connection carries x itself, not relu(x)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape [b, channels, height, width]."""
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


def impala(size: int, channels: tuple[int, ...], features: int) -> nn.Sequential:
    """The IMPALA encoder (Espeholt et al. 2018), without any normalisation layer. Each stack halves the image."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before = 3
    for i, after in enumerate(channels):
        conv, pool = nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)
        blocks = {"block0": Residual(after), "block1": Residual(after)}
        layers[f"stack{i}"] = nn.Sequential(OrderedDict(conv=conv, pool=pool, **blocks))
        before, size = after, (size + 1) // 2
    layers.update(flatten=nn.Flatten(), relu0=nn.ReLU(), fc=nn.Linear(before * size**2, features), relu1=nn.ReLU())
    return nn.Sequential(layers)


class Agent(nn.Module):
    """A policy head and a value head on one shared encoder theta (the paper's Figure 1, DCPG)."""

    def __init__(self, h: Settings, seed: int) -> None:
        super().__init__()
        self.theta = impala(h.frame_size, h.channels, h.features)
        self.policy = nn.Linear(h.features, ACTIONS)
        self.value = nn.Linear(h.features, 1)
        # Channels-last convolutions are faster on a CPU. Set the layout before drawing the weights: random numbers fill
        # a tensor in the order of its memory.
        self.theta.to(memory_format=torch.channels_last)
        g = generator(seed, "init")
        gains = {"theta.fc": math.sqrt(2), "policy": 0.01, "value": 1.0}  # the policy starts almost uniform
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_uniform_(module.weight, generator=g)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gains[name], generator=g)
                nn.init.zeros_(module.bias)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """From frames, uint8 [b, height, width, 3], to log pi(.|s) [b, actions] and V(s) [b]."""
        features = self.theta(frames.permute(0, 3, 1, 2).float() / 255)
        return F.log_softmax(self.policy(features), dim=1), self.value(features).squeeze(1)


@dataclass(frozen=True)
class Tau:
    """Line 4: the trajectories of one rollout. Every tensor starts with [T, N]."""

    frames: Tensor  # s_t, uint8
    actions: Tensor  # a_t
    log_probs: Tensor  # log pi_old(a_t|s_t), recorded while acting
    values: Tensor  # V_old(s_t), recorded while acting
    returns: Tensor  # the value function target R_t
    advantages: Tensor  # A_t, normalised over the rollout


class RewardNormaliser:
    """Divides rewards by the running standard deviation of the discounted return (VecNormalize of OpenAI Baselines)."""

    def __init__(self, num_envs: int) -> None:
        self.discounted = np.zeros(num_envs)  # running discounted sum of each environment's rewards
        self.mean, self.variance, self.count = 0.0, 1.0, 1e-4

    def __call__(self, rewards: np.ndarray, dones: np.ndarray) -> np.ndarray:
        """Normalise the rewards [N] of one step, after they have entered the statistics."""
        self.discounted = 0.99 * self.discounted + rewards  # 0.99 as in Baselines, not the gamma of the returns
        n, delta = len(rewards), self.discounted.mean() - self.mean
        total = self.count + n  # below, two means and variances are merged as in Chan et al. (1979)
        squares = self.variance * self.count + self.discounted.var() * n + delta**2 * self.count * n / total
        self.mean, self.variance, self.count = self.mean + delta * n / total, squares / total, total
        self.discounted[dones] = 0
        return np.clip(rewards / math.sqrt(self.variance + 1e-8), -10, 10)


def gae(rewards: Tensor, values: Tensor, dones: Tensor, gamma: float, lam: float) -> Tensor:
    """Advantages [T, N] (Schulman et al. 2016); `values` is [T + 1, N], and its last row is the bootstrap value."""
    advantages, following = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        mask = 1 - dones[t]  # Procgen's time limits count as ends too
        delta = rewards[t] + gamma * mask * values[t + 1] - values[t]
        advantages[t] = following = delta + gamma * lam * mask * following
    return advantages


def choose(log_pi: Tensor, uniform: Tensor) -> Tensor:
    """Sample actions by inverting the cumulative distribution of each row at a uniform random number."""
    cumulative = log_pi.double().exp().cumsum(1)
    return (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(1)


class Sampler:
    """The training environments and what carries over from one rollout to the next."""

    def __init__(self, game: str, h: Settings, seed: int) -> None:
        self.h, self.seed = h, seed
        env_seed = rand_seed(seed, "train-levels")
        self.env = Procgen(h.N, game, seed=env_seed, count=h.levels, frame_size=h.frame_size)
        self.normaliser = RewardNormaliser(h.N)
        self.running = np.zeros(h.N)  # raw returns of the episodes in progress
        self.finished: list[float] = []  # raw returns of the episodes that ended in the last rollout

    @torch.no_grad()
    def __call__(self, agent: Agent, rollout: int) -> Tau:
        """Act for T steps with pi_theta, then compute advantages and targets."""
        h, self.finished = self.h, []
        uniform = torch.rand(h.T, h.N, generator=generator(self.seed, "act", rollout), dtype=torch.float64)
        frames = torch.empty(h.T + 1, h.N, h.frame_size, h.frame_size, 3, dtype=torch.uint8)
        actions = torch.empty(h.T, h.N, dtype=torch.int64)
        log_probs, rewards, dones = torch.empty(3, h.T, h.N)
        values = torch.empty(h.T + 1, h.N)
        frames[0] = torch.from_numpy(self.env.observe()[0])
        for t in range(h.T):
            log_pi, values[t] = agent(frames[t])
            actions[t] = choose(log_pi, uniform[t])
            log_probs[t] = log_pi.gather(1, actions[t, :, None]).squeeze(1)
            step = self.env.step(actions[t].numpy())  # has reset where an episode ended: frames[t + 1] is a new start
            frames[t + 1], dones[t] = torch.from_numpy(step.frames), torch.from_numpy(step.dones)
            rewards[t] = torch.from_numpy(self.normaliser(step.rewards, step.dones))
            self.running += step.rewards
            self.finished += self.running[step.dones].tolist()
            self.running[step.dones] = 0
        values[h.T] = agent(frames[h.T])[1]
        advantages = gae(rewards, values, dones, h.gamma, h.lam)
        returns = advantages + values[:-1]  # kept as they are, however much later the value learns from them
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-5)
        return Tau(frames[:-1], actions, log_probs, values[:-1], returns, advantages)


Segment = tuple[Tensor, Tensor]  # the states s_t [T, height, width, 3] and the targets R_t [T] of one environment
Means = dict[str, float]  # each term, and the norm of the gradient, averaged over optimiser steps


def minimise(loss: Tensor, agent: Agent, adam: Adam, max_norm: float) -> Tensor:
    """Take one optimiser step with the gradient clipped over all parameters; returns its norm before clipping."""
    adam.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(agent.parameters(), max_norm)
    adam.step()
    return norm


def average(steps: list[dict[str, Tensor]]) -> Means:
    """The mean of every term over optimiser steps."""
    return {term: torch.stack([step[term].detach() for step in steps]).mean().item() for term in steps[0]}


def optimise_policy(agent: Agent, adam: Adam, tau: Tau, h: Settings, seed: int, rollout: int) -> Means:
    """Lines 5-7: the policy objective J_pi and the value regulariser C_V, with tau.

    The paper maximises J_pi; here every term is written to be minimised. V_old is the network right before this update
    (authors' code). The same weights acted, so its outputs are the recorded values and no copy is needed.
    """
    frames, actions, old_log_probs, V_old, A = (
        x.flatten(0, 1) for x in (tau.frames, tau.actions, tau.log_probs, tau.values, tau.advantages)
    )
    steps = []
    for epoch in range(h.E_pi):
        order = torch.randperm(len(frames), generator=generator(seed, "order", rollout, 1, epoch))
        for i in order.tensor_split(h.minibatches):
            log_pi, V = agent(frames[i])
            ratio = (log_pi.gather(1, actions[i, None]).squeeze(1) - old_log_probs[i]).exp()
            J_pi = -torch.minimum(ratio * A[i], ratio.clamp(1 - h.clip, 1 + h.clip) * A[i]).mean()
            C_V = 0.5 * (V - V_old[i]).square().mean()
            H = -(log_pi.exp() * log_pi).sum(1).mean()
            norm = minimise(J_pi + h.beta_V * C_V - h.entropy * H, agent, adam, h.max_grad_norm)
            steps.append({"J_pi": J_pi, "C_V": C_V, "H": H, "gradient_norm": norm})
    return average(steps)


def optimise_value(agent: Agent, adam: Adam, B: list[Segment], h: Settings, seed: int, rollout: int) -> Means:
    """Lines 10-12: the value objective J_V and the policy regulariser C_pi, with B."""
    with torch.no_grad():  # pi_old is the policy right before this phase; its outputs are computed once
        B_old = [(s, R, agent(s)[0]) for s, R in B]
    steps = []
    for epoch in range(h.E_aux):
        order = torch.randperm(len(B), generator=generator(seed, "order", rollout, 2, epoch))
        for minibatch in order.tensor_split(len(B) // h.segments):
            columns = zip(*(B_old[i] for i in minibatch.tolist()), strict=True)
            s, R, log_pi_old = (torch.stack(column, dim=1).flatten(0, 1) for column in columns)
            log_pi, V = agent(s)
            J_V = 0.5 * (V - R).square().mean()
            C_pi = (log_pi_old.exp() * (log_pi_old - log_pi)).sum(1).mean()  # KL(pi_old || pi_theta)
            norm = minimise(J_V + h.beta_pi * C_pi, agent, adam, h.max_grad_norm)
            steps.append({"J_V": J_V, "C_pi": C_pi, "gradient_norm": norm})
    return average(steps)


@dataclass(frozen=True)
class Phase:
    """What happened in one phase of Algorithm 1."""

    steps: int  # environment steps since the start of the run
    finished: list[float]  # raw returns of the episodes that ended
    policy: list[Means]  # one for each rollout, with the reward normaliser's variance
    auxiliary: Means  # empty if the run ended before N_pi rollouts


def train(agent: Agent, game: str, h: Settings, steps: int, seed: int) -> Iterator[Phase]:
    """Algorithm 1, with its line numbers. Trains the agent in place and yields after every phase."""
    sample = Sampler(game, h, seed)
    # Two Adams over the same parameters: each phase has its own moments, which are never reset.
    policy_adam, auxiliary_adam = (
        Adam(agent.parameters(), h.learning_rate, eps=h.adam_eps, fused=True) for _ in range(2)
    )
    rollouts = steps // (h.N * h.T)
    for first in range(0, rollouts, h.N_pi):  # 1: for each phase
        end = min(first + h.N_pi, rollouts)
        phase = Phase(end * h.N * h.T, [], [], {})
        B: list[Segment] = []  # 2: initialise the buffer B
        for rollout in range(first, end):  # 3: for N_pi iterations, the policy phase
            tau = sample(agent, rollout)  # 4: sample trajectories tau and compute the targets R_t
            means = optimise_policy(agent, policy_adam, tau, h, seed, rollout)  # 5-7: for E_pi epochs, with tau
            B += [(tau.frames[:, n], tau.returns[:, n]) for n in range(h.N)]  # 8: add (s_t, R_t) to B
            phase.policy.append(means | {"reward_variance": sample.normaliser.variance})
            phase.finished.extend(sample.finished)
        if len(B) == h.N_pi * h.N:  # 9: the policy phase is complete (otherwise the run ends here)
            means = optimise_value(agent, auxiliary_adam, B, h, seed, rollout)  # 10-12: for E_aux epochs, with B
            phase.auxiliary.update(means)
        yield phase
    sample.env.close()


@torch.no_grad()
def evaluate(agent: Agent, game: str, h: Settings, episodes: int, seed: int) -> float:
    """Mean return of the first episode in each of `episodes` new environments, with sampled actions.

    count=0 stands for all 2^31 - 1 levels, so that one of the training levels is very unlikely.
    """
    env = Procgen(episodes, game, seed=rand_seed(seed, "unseen-levels"), count=0, frame_size=h.frame_size)
    g = generator(seed, "unseen-levels")
    frames, returns, playing = env.observe()[0], np.zeros(episodes), np.ones(episodes, dtype=bool)
    while playing.any():  # every Procgen game has a time limit
        log_pi, _ = agent(torch.from_numpy(frames))
        step = env.step(choose(log_pi, torch.rand(episodes, generator=g, dtype=torch.float64)).numpy())
        frames, returns = step.frames, returns + step.rewards * playing
        playing &= ~step.dones
    env.close()
    return float(returns.mean())


def main() -> None:
    """Train, print a line for each phase, and play on unseen levels at the end."""
    parser = argparse.ArgumentParser(description="Delayed-Critic Policy Gradient on Procgen, in one file.")
    parser.add_argument("--game", default="starpilot")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps, rounded down to whole rollouts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", choices=SIZES, default="laptop")
    parser.add_argument("--episodes", type=int, default=100, help="episodes on unseen levels at the end")
    given = parser.parse_args()
    h = SIZES[given.size]
    if given.steps < h.N * h.T:
        parser.error(f"--steps must be at least one rollout of {h.N * h.T} steps")

    agent = Agent(h, given.seed)
    for phase in train(agent, given.game, h, given.steps, given.seed):
        terms = {term: float(np.mean([means[term] for means in phase.policy])) for term in ("J_pi", "C_V", "H")}
        terms |= {term: phase.auxiliary[term] for term in ("J_V", "C_pi") if phase.auxiliary}
        losses = "  ".join(f"{term} {value:.4f}" for term, value in terms.items())
        mean_return = f"{np.mean(phase.finished):.2f}" if phase.finished else "-"
        print(f"{phase.steps:>9,} steps  return {mean_return} ({len(phase.finished)} episodes)  {losses}", flush=True)
    score = evaluate(agent, given.game, h, given.episodes, given.seed)
    print(f"unseen levels: mean return {score:.2f} over {given.episodes} episodes")


if __name__ == "__main__":
    main()
