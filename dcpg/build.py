"""A run's network, from its configuration."""

from __future__ import annotations

from dcpg.config import Config
from dcpg.networks import Network
from dcpg.seeding import generator


def build_network(config: Config, shape: tuple[int, ...], actions: int) -> Network:
    """The network before the first step: the seed alone decides its weights."""
    method, widths = config.declared(), config.network
    network = Network(method.networks, shape, actions, widths.channels, widths.features, widths.discriminator)
    network.initialise(generator(config.seed, "init"))
    if config.machine.compile:
        for encoder in method.networks:
            network.get_submodule(encoder).compile()
    return network
