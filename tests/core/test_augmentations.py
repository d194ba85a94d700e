"""Each augmentation against a computation of its own, image by image, and its parameters' ranges."""

from __future__ import annotations

import colorsys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpg.core.augmentations import AUGMENTATIONS, hsv_to_rgb, rgb_to_hsv
from dcpg.core.draws import draw_augmentation
from dcpg.core.networks import Outputs
from dcpg.core.objectives import G_V, G_pi
from dcpg.seeding import generator
from tests.small import ACTIONS, declare, in_training, network_of, rollout_of, whole

SIZES = (64, 32, 16)
ORDER = ["crop", "random-conv", "grayscale", "flip", "rotate", "cutout", "cutout-color", "color-jitter"]


def some_images(b: int = 12, size: int = 64, seed: int = 0) -> torch.Tensor:
    frames = torch.randint(0, 256, (b, size, size, 3), generator=generator(seed, "images"), dtype=torch.uint8)
    return frames.float() / 255


def alone(name: str, image: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The same, written for one image in numpy."""
    size = image.shape[0]
    if name == "crop":
        pad = 12 * size // 64
        top, left = (min(int(x * np.float32(2 * pad + 1)), 2 * pad) for x in p)
        return np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="edge")[top : top + size, left : left + size]
    if name == "random-conv":
        weights, padded = p.reshape(3, 3, 3, 3), np.pad(image, ((1, 1), (1, 1), (0, 0)))  # [out, in, row, column]
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))  # [H, W, in, row, column]
        return np.einsum("hwirc,oirc->hwo", windows, weights)
    if name == "grayscale":
        return np.repeat((image @ np.array([0.299, 0.587, 0.114]))[..., None], 3, 2)
    if name == "flip":
        return image[::-1] if p[0] else image
    if name == "rotate":
        for _ in range(int(p[0])):
            image = image.transpose(1, 0, 2)[::-1]
        return image
    if name in ("cutout", "cutout-color"):
        out = image.copy()
        h, w = int(p[0]), int(p[1])
        rows, columns = (slice((c + n) * size // 64, (c + 2 * n) * size // 64) for c, n in ((12, h), (24, w)))
        out[rows, columns] = p[2:] if name == "cutout-color" else 0
        return out
    brightness, contrast, saturation, shift, first = p

    def contrasted(x: np.ndarray) -> np.ndarray:
        mean = x.mean((0, 1))
        return np.clip((x - mean) * contrast + mean, 0, 1)

    out = contrasted(image) if first else image
    flat = []
    for r, g, b in out.reshape(-1, 3):
        hue, s, v = colorsys.rgb_to_hsv(r, g, b)
        flat.append(colorsys.hsv_to_rgb((hue + shift) % 1, min(s * saturation, 1), min(v * brightness, 1)))
    out = np.array(flat).reshape(image.shape)
    return out if first else contrasted(out)


def test_the_arms_are_these_in_this_order() -> None:
    assert list(AUGMENTATIONS) == ORDER


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_each_equals_its_own_computation_and_leaves_the_images_alone(name: str, size: int) -> None:
    images = some_images(size=size)
    images[0] = 0  # no colour at all
    images[1] = images[1].mean(2, keepdim=True)  # grey
    before = images.clone()
    parameters = AUGMENTATIONS[name].draw(len(images), generator(1, name))
    out = AUGMENTATIONS[name].apply(images, parameters)
    assert torch.equal(images, before)
    assert out.shape == images.shape
    expected = [alone(name, i.astype(np.float64), p) for i, p in zip(images.numpy(), parameters.numpy(), strict=True)]
    np.testing.assert_allclose(out, np.stack(expected), atol=2e-5)
    if name != "grayscale":  # parameters are each image's own
        assert len(np.unique(parameters.numpy(), axis=0)) > 1
    assert not torch.equal(out, images)


def test_parameter_ranges() -> None:
    n = 20_000
    drawn = {name: a.draw(n, generator(0, name)) for name, a in AUGMENTATIONS.items()}

    def shares(column: torch.Tensor) -> dict[int, float]:
        values, counts = column.unique(return_counts=True)
        return {int(v): float(c) / n for v, c in zip(values, counts, strict=True)}

    # a crop of a 64 x 64 image starts at 0 .. 24 of the padded 88 x 88
    for column in drawn["crop"].unbind(1):
        starts = shares((column * 25).long())
        assert starts.keys() == set(range(25))
        assert all(abs(share - 1 / 25) < 0.01 for share in starts.values())
    weights = drawn["random-conv"]
    assert weights.shape == (n, 81)
    assert abs(float(weights.std()) - (2 / 54) ** 0.5) < 1e-3  # Xavier-normal: sqrt(2 / (fan in + fan out))
    assert abs(float(weights.mean())) < 1e-3
    assert drawn["grayscale"].shape == (n, 0)
    assert shares(drawn["flip"][:, 0]) == pytest.approx({0: 0.5, 1: 0.5}, abs=0.02)
    assert shares(drawn["rotate"][:, 0]) == pytest.approx(dict.fromkeys(range(4), 0.25), abs=0.02)
    for name in ("cutout", "cutout-color"):
        for column in drawn[name][:, :2].unbind(1):
            assert shares(column) == pytest.approx(dict.fromkeys(range(7, 22), 1 / 15), abs=0.01)
    colours = drawn["cutout-color"][:, 2:]
    assert colours.min() == 0  # in the images' own range, also after the first draw
    assert colours.max() == 1
    assert abs(float(colours.mean()) - 0.5) < 0.01
    jitter = drawn["color-jitter"]
    for column in jitter[:, :3].unbind(1):
        assert 0.6 <= float(column.min()) < 0.601
        assert 1.399 < float(column.max()) <= 1.4
        assert abs(float(column.mean()) - 1) < 0.01
    hue = 0.5 * 255 / 360
    assert -hue <= float(jitter[:, 3].min()) < -hue + 1e-3
    assert hue - 1e-3 < float(jitter[:, 3].max()) <= hue
    assert shares(jitter[:, 4]) == pytest.approx({0: 0.5, 1: 0.5}, abs=0.02)


def test_the_box_is_clipped_at_the_border() -> None:
    images = torch.ones(1, 64, 64, 3)
    out = AUGMENTATIONS["cutout"].apply(images, torch.tensor([[21, 21]]))
    hole = (out[0, :, :, 0] == 0).nonzero()
    assert hole.min(0).values.tolist() == [33, 45]
    assert hole.max(0).values.tolist() == [53, 63]  # 24 + 2 * 21 = 66 columns, of which 64 exist


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(*[st.floats(0, 1, width=32)] * 3), min_size=1, max_size=20))
def test_hsv_equals_colorsys_and_back(pixels: list[tuple[float, float, float]]) -> None:
    images = torch.tensor(pixels)
    hsv = rgb_to_hsv(images)
    np.testing.assert_allclose(hsv_to_rgb(hsv), images, atol=1e-5)
    for (r, g, b), (h, s, v) in zip(pixels, hsv.tolist(), strict=True):
        expected = colorsys.rgb_to_hsv(r, g, b)
        assert v == pytest.approx(expected[2], abs=1e-6)
        if max(r, g, b) > 1e-3 and expected[1] > 1e-3:  # a hue of nearly grey is rounding alone
            assert s == pytest.approx(expected[1], abs=1e-3)
            assert min(abs(h - expected[0]), 1 - abs(h - expected[0])) < 1e-3


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_parameters_are_keyed_and_samples_keep_theirs_in_chunks(name: str) -> None:
    method, _ = declare("ppo", {"augment": name})
    network = network_of(method)
    tau = rollout_of(method, network)
    (line,) = method.policy_phase
    batch = tau.minibatch(torch.arange(10))
    tau = replace(tau, augmentation=name)
    draw = draw_augmentation(None)
    one, two, other = (draw(batch, tau, generator(0, "draw", k), ACTIONS).augmentation[name] for k in (1, 1, 2))
    assert torch.equal(one, two)
    assert name == "grayscale" or not torch.equal(one, other)
    drawn = line.draw(batch, tau, generator(0, "d"), ACTIONS)
    assert torch.equal(drawn.frames, batch.frames)
    whole_view = Outputs(network, drawn, 64).augmented.batch.frames
    parts = [Outputs(network, part, 64).augmented.batch.frames for part in drawn.chunks(3)]
    torch.testing.assert_close(torch.cat(parts), whole_view)
    assert batch.frames.dtype == torch.uint8


def test_drac_terms_by_hand() -> None:
    """The exact cross-entropy with the clean policy held still, and half the squared distance of the values."""
    algorithm = in_training("ucb-drac")
    tau = algorithm.collector.sample(0)
    (line,) = algorithm.method.policy_phase
    batch = whole(algorithm, line, tau)
    assert set(batch.augmentation) == {"crop"}
    with torch.no_grad():  # V(s) is that of now, not the one recorded while acting
        algorithm.stepper.network.value.bias.add_(1.0)
        algorithm.stepper.network.value.weight.mul_(1.5)
    augmented = AUGMENTATIONS["crop"].apply(batch.frames.float() / 255, batch.augmentation["crop"])
    network = algorithm.stepper.network
    with torch.no_grad():
        clean, view = (network.theta(x) for x in (batch.frames, augmented))
        p, q = (torch.softmax(network.policy(x), 1).numpy() for x in (clean, view))
        v, w = (network.value(x).numpy()[:, 0] for x in (clean, view))
    out = Outputs(network, batch, 64)
    np.testing.assert_allclose(G_pi(out, batch).detach(), -(p * np.log(q)).sum(1), rtol=1e-5)
    np.testing.assert_allclose(G_V(out, batch, "value").detach(), 0.5 * (v - w) ** 2, rtol=1e-4, atol=1e-9)
    assert line.terms["G_pi"][0] == line.terms["G_V"][0] == 0.1
    assert (np.abs(v - w) > 1e-6).any()


@pytest.mark.parametrize("term", ["G_pi", "G_V"])
def test_drac_holds_the_clean_side_still(term: str) -> None:
    """The gradient is that of the augmented view alone: none comes back through the clean frames."""
    algorithm = in_training("ucb-drac")
    tau = algorithm.collector.sample(0)
    (line,) = algorithm.method.policy_phase
    batch = whole(algorithm, line, tau)
    shift = {"crop": torch.full_like(batch.augmentation["crop"], 0.99)}
    frames = (batch.frames.float() / 255).requires_grad_()
    out = Outputs(algorithm.stepper.network, replace(batch, frames=frames, augmentation=shift), 64)
    seen = out.augmented.batch.frames
    seen.retain_grad()
    line.terms[term][1](out, out.batch).sum().backward()
    assert seen.grad.abs().max() > 0
    # a crop shifted to the far corner leaves the first rows out; a gradient there would be the clean side's
    pad = 12 * batch.frames.shape[1] // 64
    assert frames.grad[:, : pad - 1].abs().max() == 0
    assert frames.grad[:, pad:].abs().max() > 0


@pytest.mark.parametrize(
    ("name", "head"),
    [("ppo", "value"), ("daac", "value"), ("idaac", "value"), ("ppg", "value"), ("separate-dcpg", "value")],
)
def test_drac_joins_the_line_with_J_pi_and_the_value_of_the_advantages(name: str, head: str) -> None:
    plain, _ = declare(name)
    method, _ = declare(name, {"augment": "ucb"})
    assert method.advantages == head
    for line, before in zip(method.lines, plain.lines, strict=True):
        added = set(line.terms) - set(before.terms)
        assert added == ({"G_pi", "G_V"} if "J_pi" in before.terms else set())
        assert {k: w for k, (w, _) in before.terms.items()}.items() <= {
            k: w for k, (w, _) in line.terms.items()
        }.items()
        if added:
            assert line.terms["G_V"][1].keywords == {"head": head}
    assert not plain.augmented
    assert method.augmented
