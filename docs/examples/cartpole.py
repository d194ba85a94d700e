"""CartPole by its Gymnasium id: PPO balances the pole in 15 seconds. Its four numbers go through two tanh layers.

python docs/examples/cartpole.py

The same on the command line:

dcpg train ppo --env CartPole-v1 --steps 60000 --set env.num_envs=16 --set rollout_length=64 --out runs/cartpole
"""

from __future__ import annotations

SETTINGS = {
    "env.num_envs": 16,
    "rollout_length": 64,
    "network.features": 64,
    "evaluation.every": 20,
    "evaluation.episodes": 20,
    "machine.threads": 1,  # a network this small gains nothing from more
}

if __name__ == "__main__":
    import dcpg

    run = dcpg.train("ppo", env="CartPole-v1", steps=60_000, settings=SETTINGS, out="runs/cartpole")
    print(f"mean return {run.summary['train_return']:.1f} of 500")
