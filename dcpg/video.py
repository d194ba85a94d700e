"""Videos of an agent at play, as people see the game."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg import evaluation
from dcpg.agent import Agent
from dcpg.envs.base import Step
from dcpg.envs.make import make_levels
from dcpg.envs.procgen import Procgen
from dcpg.errors import BadInput

FPS = 15  # Procgen's own
MAX_FRAMES = 1000
GAP = 4  # pixels between two pictures of a grid; even, as H.264 wants


def play(agent: Agent, levels: list[int]) -> tuple[list[NDArray[Any]], list[float]]:
    """One episode on each level, side by side: the frames of a tiled picture, and the returns."""
    env = make_levels(agent.config, levels, render=True)
    assert isinstance(env, Procgen)
    shown = env.high_resolution()
    frames = [tiled(shown)]

    def watch(step: Step, playing: NDArray[Any]) -> None:
        going_on = playing & ~step.dones
        shown[going_on] = env.high_resolution()[going_on]
        shown[playing & step.dones] //= 3  # a finished tile goes dark
        frames.append(tiled(shown))

    protocol = replace(evaluation.Protocol.of(agent.config), max_steps=MAX_FRAMES)
    key = (agent.config.seed, "video", f"levels-{levels[0]}", agent.k)
    episodes = evaluation.play(env, agent.actor, agent.normaliser, protocol, key, on_step=watch)
    env.close()
    return frames, episodes.returns


def tiled(frames: NDArray[Any]) -> NDArray[Any]:
    """[N, H, W, 3] as one picture: as it is, or several at half size in a grid as square as can be."""
    if len(frames) > 1:
        frames = frames[:, ::2, ::2]
    n, h, w, _ = frames.shape
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    down, across = h + GAP, w + GAP
    picture = np.full((rows * down - GAP, columns * across - GAP, 3), 96, np.uint8)
    for i, frame in enumerate(frames):
        r, k = divmod(i, columns)
        picture[r * down : r * down + h, k * across : k * across + w] = frame
    return picture


def write(frames: list[NDArray[Any]], out: Path) -> None:
    """An mp4 (H.264) or a gif, by the file's ending."""
    if out.suffix == ".mp4":
        _mp4(frames, out)
    elif out.suffix == ".gif":
        _gif(frames, out)
    else:
        raise BadInput(f"A video ends in .mp4 or .gif; got {out.name!r}.")


def _mp4(frames: list[NDArray[Any]], out: Path) -> None:
    import av

    with av.open(str(out), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(FPS), options={"crf": "23"})
        stream.height, stream.width, stream.pix_fmt = frames[0].shape[0], frames[0].shape[1], "yuv420p"
        for frame in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def _gif(frames: list[NDArray[Any]], out: Path) -> None:
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in frames]
    pictures[0].save(out, save_all=True, append_images=pictures[1:], duration=1000 // FPS, loop=0)
