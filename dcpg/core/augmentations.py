"""The eight augmentations of UCB-DrAC (Raileanu et al. 2021), in the order of its arms.

An augmentation is two functions: `draw` returns the parameters of each image, [b, k], and `apply` makes new images from
images [b, H, W, 3] in [0, 1] and those parameters. Images are never modified in place. Lengths are given for 64 x 64
images and scale with the height.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

PAD = 12  # pixels that a crop can shift by


BOX = (7, 22)  # a cutout's height and width are integers in this half-open range


CORNER = (12, 24)  # its distance from the top and from the left, plus its height or width


GREY = (0.299, 0.587, 0.114)


FACTORS = (0.6, 1.4)  # range of the factors of brightness, contrast and saturation


HUE = 0.5 * 255 / 360  # a hue in [0, 1] is shifted by at most this


class Augmentation(NamedTuple):
    """Two functions: one draws the parameters, the other applies them."""

    draw: Callable[[int, Generator], Tensor]  # number of images -> parameters [b, k]
    apply: Callable[[Tensor, Tensor], Tensor]  # images [b, H, W, 3], parameters [b, k] -> new images


def _length(pixels: Tensor, images: Tensor) -> Tensor:
    """Scale a length in pixels of a 64 x 64 image to these images, rounded down."""
    return pixels * images.shape[1] // 64


def _uniform(b: int, k: int, generator: Generator) -> Tensor:
    return torch.rand(b, k, generator=generator)


def _integers(b: int, low: int, high: int, generator: Generator) -> Tensor:
    return torch.randint(low, high, (b, 1), generator=generator)


def crop_draw(b: int, generator: Generator) -> Tensor:
    """The offset of the crop from the top and the left of the padded image, as fractions in [0, 1)."""
    return _uniform(b, 2, generator)


def crop(images: Tensor, shifts: Tensor) -> Tensor:
    """Pad by repeating the border, then crop to the original size at a random position."""
    b, height, width, _ = images.shape
    pad = PAD * height // 64
    shift = (shifts * (2 * pad + 1)).long().clamp(max=2 * pad) - pad
    # clamped indices repeat the border, without a padded copy
    rows = (torch.arange(height, device=images.device) + shift[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + shift[:, 1:]).clamp(0, width - 1)
    return images[torch.arange(b, device=images.device)[:, None, None], rows[:, :, None], columns[:, None, :]]


def random_conv_draw(b: int, generator: Generator) -> Tensor:
    """Xavier-normal weights of one convolution per image."""
    return torch.randn(b, 3 * 3 * 3 * 3, generator=generator) * math.sqrt(2 / (27 + 27))


def random_conv(images: Tensor, weights: Tensor) -> Tensor:
    """Convolve each image with its own 3 x 3 weights, without bias; the values are not clamped."""
    b, height, width, _ = images.shape
    stacked = images.permute(0, 3, 1, 2).reshape(1, 3 * b, height, width)
    out = F.conv2d(stacked, weights.reshape(3 * b, 3, 3, 3), padding=1, groups=b)
    return out.reshape(b, 3, height, width).permute(0, 2, 3, 1)


def grayscale_draw(b: int, generator: Generator) -> Tensor:
    """No parameters: [b, 0], because nothing is random."""
    return torch.zeros(b, 0)


def grayscale(images: Tensor, nothing: Tensor) -> Tensor:
    """Replace all three channels by the luminance."""
    return (images * torch.tensor(GREY, device=images.device)).sum(3, keepdim=True).expand_as(images)


def flip_draw(b: int, generator: Generator) -> Tensor:
    """1 for images that are flipped and 0 for the others."""
    return _integers(b, 0, 2, generator)


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Flip the chosen images upside down."""
    return torch.where(_over_image(flipped) == 1, images.flip(1), images)


def rotate_draw(b: int, generator: Generator) -> Tensor:
    """The number of quarter turns of each image, 0 to 3."""
    return _integers(b, 0, 4, generator)


def rotate(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate each image anticlockwise by its number of quarter turns."""
    turned = torch.stack([torch.rot90(images, k, (1, 2)) for k in range(4)])
    return turned[turns[:, 0], torch.arange(len(images), device=images.device)]


def cutout_draw(b: int, generator: Generator) -> Tensor:
    """The height and width of the box."""
    return torch.cat([_integers(b, *BOX, generator), _integers(b, *BOX, generator)], 1)


def cutout(images: Tensor, sizes: Tensor) -> Tensor:
    """Fill a box in each image with black."""
    return torch.where(_box(images, sizes), torch.zeros((), device=images.device), images)


def cutout_color_draw(b: int, generator: Generator) -> Tensor:
    """The height and width of the box, and its colour in [0, 1]."""
    sizes = cutout_draw(b, generator)
    return torch.cat([sizes, torch.randint(0, 256, (b, 3), generator=generator) / 255], 1)


def cutout_color(images: Tensor, parameters: Tensor) -> Tensor:
    """Fill a box in each image with one colour."""
    return torch.where(_box(images, parameters[:, :2].long()), parameters[:, None, None, 2:], images)


def _box(images: Tensor, sizes: Tensor) -> Tensor:
    """The mask of the box, bool [b, H, W, 1]: from the corner + size to the corner + twice the size."""
    inside = []
    for axis in (0, 1):
        place = torch.arange(images.shape[1 + axis], device=images.device)
        low = _length(CORNER[axis] + sizes[:, axis : axis + 1], images)
        high = _length(CORNER[axis] + 2 * sizes[:, axis : axis + 1], images)
        inside.append((place >= low) & (place < high))
    rows, columns = inside
    return (rows[:, :, None] & columns[:, None, :])[..., None]


def color_jitter_draw(b: int, generator: Generator) -> Tensor:
    """Factors of brightness, contrast and saturation, the shift of the hue, and whether contrast comes first."""
    low, high = FACTORS
    factors = low + (high - low) * _uniform(b, 3, generator)
    shift = HUE * (2 * _uniform(b, 1, generator) - 1)
    return torch.cat([factors, shift, _integers(b, 0, 2, generator)], 1)


def color_jitter(images: Tensor, parameters: Tensor) -> Tensor:
    """Change the contrast about each channel's mean, and brightness, hue and saturation in HSV, in random order."""
    brightness, contrast, saturation, shift, first = (_over_image(p[:, None]) for p in parameters.unbind(1))
    first = first == 1

    def contrasted(x: Tensor) -> Tensor:
        mean = x.mean((1, 2), keepdim=True)
        return ((x - mean) * contrast + mean).clamp(0, 1)

    start = torch.where(first, contrasted(images), images)
    hue, saturated, value = rgb_to_hsv(start).chunk(3, dim=3)
    hsv = torch.cat([(hue + shift) % 1, (saturated * saturation).clamp(0, 1), (value * brightness).clamp(0, 1)], 3)
    end = hsv_to_rgb(hsv)
    return torch.where(first, end, contrasted(end)).clamp(0, 1)


def rgb_to_hsv(images: Tensor) -> Tensor:
    """Hue, saturation and value, all in [0, 1], of images [..., 3] in [0, 1]."""
    value, most = images.max(-1)
    spread = value - images.min(-1).values
    red, green, blue = images.unbind(-1)
    safe = spread.clamp(min=1e-12)
    from_top = torch.stack([(green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe], -1)
    hue = from_top.gather(-1, most[..., None]).squeeze(-1) / 6 % 1
    saturation = spread / value.clamp(min=1e-12)
    return torch.stack([hue * (spread > 0), saturation, value], -1)


def hsv_to_rgb(images: Tensor) -> Tensor:
    """The inverse of `rgb_to_hsv`."""
    hue, saturation, value = images.chunk(3, dim=-1)
    # channel n is value - value saturation max(0, min(k, 4 - k, 1)) with k = (n + 6 hue) mod 6, n = 5, 3, 1
    k = (torch.tensor([5.0, 3.0, 1.0], device=images.device) + 6 * hue) % 6
    return value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1)


def _over_image(parameters: Tensor) -> Tensor:
    """Reshape [b, 1] to [b, 1, 1, 1], to broadcast over images."""
    return parameters[:, :, None, None]


AUGMENTATIONS = {
    "crop": Augmentation(crop_draw, crop),
    "random-conv": Augmentation(random_conv_draw, random_conv),
    "grayscale": Augmentation(grayscale_draw, grayscale),
    "flip": Augmentation(flip_draw, flip),
    "rotate": Augmentation(rotate_draw, rotate),
    "cutout": Augmentation(cutout_draw, cutout),
    "cutout-color": Augmentation(cutout_color_draw, cutout_color),
    "color-jitter": Augmentation(color_jitter_draw, color_jitter),
}
