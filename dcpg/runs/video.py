"""Videos of an agent: the game in high resolution, with the agent's values and policy beside it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dcpg.config.build import protocol_of
from dcpg.config.schema import OWN
from dcpg.core import evaluation
from dcpg.envs.base import Array, VectorEnv
from dcpg.errors import BadInput, StorageFailed
from dcpg.runs.agent import Agent
from dcpg.storage.files import replacing

FPS = 15  # as in Procgen
MAX_FRAMES = 1000
END = FPS  # frames for which the last picture is shown
GIF_WIDTH = 480  # pixels at most: a GIF compresses badly
GIF_COLOURS = 64
GIF_SAMPLE = 16  # frames, about, that its palette is made from
GIF_FRAMES = 300  # at most: a longer GIF shows every second frame, every fourth, ...
GIF_DELAY = 70  # milliseconds per frame: GIF allows multiples of ten, and 1/15 s is 67

# Procgen's 15 actions: eight directions, nothing, and six that fire, throw or do nothing, as the game has it
ACTIONS = (
    "left-down", "left", "left-up", "down", "no-op", "up", "right-down", "right", "right-up",
    "special 1", "special 2", "special 3", "special 4", "special 5", "special 6",
)  # fmt: skip

# Lengths in pixels of a tile at scale 1; a single level is shown at scale 2.
GAME, PANEL, MARGIN = 256, 172, 8
SECOND = 92  # where the panel's second column begins
GAP = 4  # between two tiles; H.264 needs even sizes
ROW, ROWS = 10, 150  # height of an action's row at most, and of all of them
MOST_ROWS = 25  # of more actions, the most likely ones are shown
CURVE = (48, 92)  # top and bottom of the value's curve
BARS = 101  # top of the first action's row
BAR_LEFT, BAR_RIGHT = 60, 140  # ends of a bar of probability 0 and of probability 1
CURVE_STEPS = 50  # steps before the curve is squeezed

Colour = tuple[int, int, int]
BACKGROUND: Colour = (22, 24, 29)
FIELD: Colour = (36, 39, 46)
BETWEEN: Colour = (70, 74, 82)
DIM: Colour = (150, 155, 165)
BRIGHT: Colour = (238, 240, 244)
BAR: Colour = (72, 128, 200)
TAKEN: Colour = (255, 176, 60)
VALUE: Colour = (96, 208, 160)


def record(agent: Agent, env: VectorEnv, out: Path) -> evaluation.Episodes:
    """Play one episode per environment and write them side by side to an .mp4 or a .gif file; returns the episodes.

    The environments draw themselves and are closed afterwards.
    """
    try:
        check_target(out)
        return _recorded(agent, env, out)
    finally:
        env.close()


def _recorded(agent: Agent, env: VectorEnv, out: Path) -> evaluation.Episodes:
    levels, first = env.observe()[1].tolist(), env.first_action
    scale = 2 if len(levels) == 1 else 1
    names = [f"level {level}" if env.has_levels else f"episode {i}" for i, level in enumerate(levels, 1)]
    own = agent.config.game.startswith(OWN)
    actions = tuple(f"action {n}" for n in range(first, first + env.num_actions)) if own else ACTIONS
    tiles = [Tile(name, scale, actions) for name in names]
    for tile, picture in zip(tiles, env.pictures(), strict=True):
        tile.look(picture)

    with writing(out, tiled([tile.image for tile in tiles]).size) as add:

        def watch(turn: evaluation.Turn) -> None:
            probabilities = turn.log_policy.exp().tolist()
            playing = [tiles[i] for i in np.flatnonzero(turn.playing)]
            actions = turn.actions[turn.playing].tolist()
            for tile, p, value, action in zip(playing, probabilities, turn.values.tolist(), actions, strict=True):
                tile.think(p, value, action)
            add(tiled([tile.image for tile in tiles]))
            pictures = env.pictures()
            for i in np.flatnonzero(turn.playing):
                tiles[i].total += float(turn.step.rewards[i])
                if turn.step.dones[i]:  # the picture already shows the next episode
                    tiles[i].finish("return")
                else:
                    tiles[i].look(pictures[i])

        protocol = replace(protocol_of(agent.config), max_steps=MAX_FRAMES)
        key = (agent.config.seed, "video", f"levels-{levels[0]}", agent.k)
        episodes = evaluation.play(env, agent.actor, agent.normaliser, protocol, key, watch=watch)
        for tile in tiles:
            if not tile.finished:
                tile.finish("return so far")
        last = tiled([tile.image for tile in tiles])
        for _ in range(END):
            add(last)
    return episodes


@dataclass
class Tile:
    """One episode: the game's picture, and a panel with the agent's value and policy."""

    name: str
    scale: int  # 1 or 2
    actions: tuple[str, ...] = ACTIONS
    total: float = 0.0  # the return so far
    finished: bool = False
    values: list[float] = field(default_factory=list)  # V of every state so far
    image: Image.Image = field(init=False)

    def __post_init__(self) -> None:
        self.image = Image.new("RGB", ((GAME + PANEL) * self.scale, GAME * self.scale), BACKGROUND)

    def look(self, picture: Array) -> None:
        """Show the game's current picture, uint8 [height, width, 3]; Procgen's are 512 x 512."""
        shown, side = Image.fromarray(picture), GAME * self.scale
        if shown.size == (2 * GAME, 2 * GAME):
            shown = shown if self.scale == 2 else shown.reduce(2)
        else:
            grow = side / max(shown.size)
            size = [max(round(grow * length), 1) for length in shown.size]
            shown = shown.resize((size[0], size[1]), Image.Resampling.NEAREST if grow >= 2 else Image.Resampling.BOX)
        self.image.paste(BACKGROUND, (0, 0, side, side))
        self.image.paste(shown, ((side - shown.width) // 2, (side - shown.height) // 2))

    def think(self, probabilities: Sequence[float], value: float, action: int) -> None:
        """Show the value of the state, the policy and the action that was taken."""
        self.values.append(value)
        pen = Pen(self.image, self.scale, GAME)
        pen.box(0, 0, PANEL, GAME, BACKGROUND)
        left, right = MARGIN, PANEL - MARGIN
        pen.text(left, 6, self.name, 11, BRIGHT)
        pen.text(right, 6, f"step {len(self.values) - 1}", 11, BRIGHT, "ra")
        self._total(pen)
        pen.text(SECOND, 26, "V(s)", 10, VALUE)
        pen.text(right, 24, f"{value:.2f}", 12, VALUE, "ra")
        self._curve(pen)
        likely = sorted(range(len(self.actions)), key=lambda n: (n != action, -probabilities[n]))[:MOST_ROWS]
        height = min(ROW, ROWS / len(likely))
        size = 9 if height == ROW else 6
        for row, n in enumerate(sorted(likely)):
            name, p = self.actions[n], probabilities[n]
            top, bottom = BARS + row * height, BARS + (row + 1) * height
            words, bar = (TAKEN, TAKEN) if n == action else (DIM, BAR)
            pen.text(BAR_LEFT - 4, top, name, size, words, "ra")
            pen.box(BAR_LEFT, top + 2, BAR_RIGHT, bottom - 1, FIELD)
            pen.box(BAR_LEFT, top + 2, BAR_LEFT + p * (BAR_RIGHT - BAR_LEFT), bottom - 1, bar)
            pen.text(right, top, f"{100 * p:.0f}%", size, words, "ra")

    def _total(self, pen: Pen) -> None:
        pen.box(MARGIN, 22, SECOND - 10, 42, BACKGROUND)
        pen.text(MARGIN, 26, "return", 10, DIM)
        pen.text(SECOND - 10, 24, f"{self.total:.4g}", 12, BRIGHT, "ra")

    def _curve(self, pen: Pen) -> None:
        """The values over the episode, scaled to their lowest and highest so far."""
        top, bottom = CURVE
        left, right = MARGIN, PANEL - MARGIN
        pen.box(left, top, right, bottom, FIELD)
        low, high = min(self.values), max(self.values)
        if high - low < 0.1:  # do not magnify noise
            low, high = (low + high) / 2 - 0.05, (low + high) / 2 + 0.05
        start = left + 22  # the scale is to the left of the curve
        across = (right - start - 4) / max(CURVE_STEPS, len(self.values) - 1)
        down = (bottom - top - 6) / (high - low)
        pen.text(left + 2, top + 1, f"{high:.3g}", 8, DIM)
        pen.text(left + 2, bottom - 2, f"{low:.3g}", 8, DIM, "ls")
        pen.line([(start + t * across, top + 3 + (high - v) * down) for t, v in enumerate(self.values)], VALUE)

    def finish(self, words: str) -> None:
        """Darken the tile and show the final return."""
        self.finished = True
        self._total(Pen(self.image, self.scale, GAME))
        self.image = Image.blend(self.image, Image.new("RGB", self.image.size), 0.7)
        pen = Pen(self.image, self.scale, 0)
        pen.text(GAME / 2, GAME / 2 - 22, words, 13, BRIGHT, "mm")
        pen.text(GAME / 2, GAME / 2 + 4, f"{self.total:.4g}", 30, BRIGHT, "mm")


@dataclass(frozen=True)
class Pen:
    """Draws on a picture in the lengths of a tile at scale 1, to the right of `left`."""

    image: Image.Image
    scale: int
    left: int

    def box(self, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
        """A filled rectangle that excludes its right and lower ends."""
        a, b = self._at(x0, y0), self._at(x1, y1)
        if b[0] - a[0] >= 1:
            ImageDraw.Draw(self.image).rectangle((round(a[0]), round(a[1]), round(b[0]) - 1, round(b[1]) - 1), colour)

    def text(self, x: float, y: float, words: str, size: int, colour: Colour, anchor: str = "la") -> None:
        """Text at a place; `anchor` as in Pillow."""
        ImageDraw.Draw(self.image).text(self._at(x, y), words, colour, font(size * self.scale), anchor)

    def line(self, points: Sequence[tuple[float, float]], colour: Colour) -> None:
        """A line through points, with a dot on the last one."""
        draw, places = ImageDraw.Draw(self.image), [self._at(*p) for p in points]
        draw.line(places, colour, self.scale, "curve")
        draw.circle(places[-1], 1.5 * self.scale, colour)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (self.left + x) * self.scale, y * self.scale


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's default font in this size."""
    return ImageFont.load_default(size)


def tiled(tiles: Sequence[Image.Image]) -> Image.Image:
    """Pictures of equal size in a grid with as many columns as rows, or one more."""
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    w, h = tiles[0].size
    picture = Image.new("RGB", (columns * (w + GAP) - GAP, rows * (h + GAP) - GAP), BETWEEN)
    for i, tile in enumerate(tiles):
        row, column = divmod(i, columns)
        picture.paste(tile, (column * (w + GAP), row * (h + GAP)))
    return picture


def check_target(out: Path) -> None:
    """Refuse a file that a video cannot be written to, before anything is played."""
    if out.suffix not in (".mp4", ".gif"):
        raise BadInput(f"A video ends in .mp4 or .gif; got {out.name!r}.")
    if not out.parent.is_dir():
        raise BadInput(f"There is no folder {out.parent} to write {out.name} into.")


@contextmanager
def writing(out: Path, size: tuple[int, int]) -> Iterator[Callable[[Image.Image], None]]:
    """Yields a function that adds a frame; the file appears under its name when it is complete."""
    kind = _mp4 if out.suffix == ".mp4" else _gif
    try:
        with replacing(out) as temporary, kind(temporary, size) as add:
            yield add
    except (OSError, av.FFmpegError) as error:
        raise StorageFailed(f"{out} cannot be written ({error.strerror or error}).") from None


@contextmanager
def _mp4(path: Path, size: tuple[int, int]) -> Iterator[Callable[[Image.Image], None]]:
    """H.264; frames are encoded as they come."""
    place = f"file:{path.absolute()}"  # what stands before a colon would be a protocol
    with av.open(place, "w", options={"movflags": "faststart"}) as container:  # browsers can play it while it loads
        stream = container.add_stream("libx264", rate=Fraction(FPS), options={"crf": "21"})
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"

        def add(picture: Image.Image) -> None:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")))

        yield add
        container.mux(stream.encode())


@contextmanager
def _gif(path: Path, size: tuple[int, int]) -> Iterator[Callable[[Image.Image], None]]:
    """A small GIF. One palette for all frames: what does not change keeps its colour and takes no room."""
    frames: list[Image.Image] = []
    width = min(GIF_WIDTH, size[0])
    small = width, round(size[1] * width / size[0])
    given, every = 0, 1

    def add(picture: Image.Image) -> None:
        nonlocal given, every
        if given % every == 0:
            frames.append(picture.resize(small, Image.Resampling.LANCZOS))
        given += 1
        if len(frames) > GIF_FRAMES:
            del frames[1::2]
            every *= 2

    yield add
    some = frames[:: max(len(frames) // GIF_SAMPLE, 1)]
    sheet = Image.new("RGB", (small[0], small[1] * len(some)))
    for number, frame in enumerate(some):
        sheet.paste(frame, (0, number * small[1]))
    # unlike the median cut, the octree keeps rare colours such as that of the action taken
    palette = sheet.quantize(GIF_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    first.save(path, save_all=True, append_images=others, duration=GIF_DELAY * every, loop=0)
