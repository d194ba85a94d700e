"""Settings: names, presets, and sentences for what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpg.config.presets import PRESETS
from dcpg.config.resolve import origins, resolve
from dcpg.config.written import fingerprint, from_json
from dcpg.errors import BadInput
from dcpg.methods import METHODS


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", METHODS)
def test_a_configuration_survives_json(name: str, preset: str) -> None:
    c = resolve(name, "bigfish", preset=preset, seed=3)
    assert from_json(json.loads(json.dumps(c.to_json()))) == c
    assert len(fingerprint(c.to_json())) == 64


def test_the_papers_values_are_the_defaults() -> None:
    c = resolve("ddcpg", "bigfish")
    expected = {
        "steps": 25_000_000, "rollout_length": 256, "algorithm.gamma": 0.999, "algorithm.lam": 0.95,
        "algorithm.clip": 0.2, "algorithm.entropy": 0.01, "algorithm.learning_rate": 5e-4, "algorithm.adam_eps": 1e-5,
        "algorithm.max_grad_norm": 0.5, "algorithm.minibatches": 8, "algorithm.E_pi": 1, "algorithm.N_pi": 32,
        "algorithm.E_aux": 6, "algorithm.segments": 4, "algorithm.beta_pi": 1.0, "algorithm.beta_V": 1.0,
        "algorithm.beta_f": 1.0, "algorithm.eta": 0.5, "algorithm.mask_boundaries": False, "env.num_envs": 64,
        "env.mode": "easy", "levels.start": 0, "levels.count": 200, "network.channels": (16, 32, 32),
        "network.features": 256, "evaluation.every": 10, "evaluation.episodes": 100,
    }  # fmt: skip
    found = {name: value for name, value, _ in origins(c, {})}
    assert {name: found[name] for name in expected} == expected
    assert resolve("ppo", "bigfish").algorithm.E_pi == 3


def test_every_setting_has_an_origin() -> None:
    for name in METHODS:
        for dotted, _, origin in origins(resolve(name, "bigfish"), {}):
            assert origin, dotted


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm.gama": "0.9"}, "did you mean 'algorithm.gamma'"),
        ({"N_pi": "2"}, "did you mean 'algorithm.N_pi'"),
        ({"algorithm.gamma": "1.5"}, "algorithm.gamma must be at most 1; got 1.5"),
        ({"algorithm.gamma": "nan"}, "must be a finite number"),
        ({"algorithm.learning_rate": "0"}, "must be above 0"),
        ({"algorithm.learning_rate": "fast"}, "must be a number; got 'fast'"),
        ({"algorithm.N_pi": "1.5"}, "must be a whole number"),
        ({"algorithm.mask_boundaries": "maybe"}, "must be true or false"),
        ({"env.mode": "medium"}, "must be one of easy, hard"),
        ({"network.channels": "16,x"}, "must be a whole number"),
        ({"network.channels": "16,0"}, "must be at least 1"),
        ({"algorithm.minibatches": "7"}, "does not divide a rollout of 64 x 256 = 16384"),
        ({"algorithm.segments": "3"}, "does not divide the 2048 segments"),
        ({"steps": "100"}, "less than one rollout of 16384"),
        ({"levels.count": "-1"}, "must be at least 0"),
        ({"game": "maze"}, "game is no setting; it is given by itself, beside settings="),
        ({"levels.seeds": "3000000000"}, "must be at most 2147483646"),
        ({"levels.start": "2147483646"}, "levels.start + levels.count must be at most"),
        ({"env.num_envs": "99999999999999"}, "must be at most 65536"),
        ({"machine.precision": "fp8"}, "must be one of auto, fp32, bf16"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        resolve("ddcpg", "bigfish", settings=settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names_get_the_nearest() -> None:
    for call, nearest in (
        (lambda: resolve("dcgp", "bigfish"), "'dcpg'"),
        (lambda: resolve("dcpg", "starpliot"), "'starpilot'"),
        (lambda: resolve("dcpg", "maze", preset="labtop"), "'laptop'"),
    ):
        with pytest.raises(BadInput, match=f"did you mean {nearest}"):
            call()


@given(st.integers(1, 10**9), st.integers(1, 8), st.sampled_from([16, 32, 64]))
def test_steps_are_floored_to_whole_rollouts(steps: int, envs: int, length: int) -> None:
    size = envs * length
    settings = {"env.num_envs": envs, "rollout_length": length, "algorithm.minibatches": 1, "algorithm.segments": 1}
    if steps < size:
        with pytest.raises(BadInput):
            resolve("dcpg", "maze", steps=steps, settings=settings)
    else:
        c = resolve("dcpg", "maze", steps=steps, settings=settings)
        assert c.rollouts * size <= steps < (c.rollouts + 1) * size


def test_a_strange_configuration_file_is_refused() -> None:
    plain = resolve("dcpg", "maze").to_json()
    for change in ({"method": "nope"}, {"algorithm": {"gamma": 2}}, {"algorithm": {"beta_X": 1}}, {"env": 3}):
        with pytest.raises(BadInput, match="config"):
            from_json({**plain, **change}, "config.json")
    for missing in ("env", "seed"):
        with pytest.raises(BadInput, match=f"{missing} is missing"):
            from_json({k: v for k, v in plain.items() if k != missing}, "config.json")
    with pytest.raises(BadInput, match="Unknown setting 'sede'; did you mean 'seed'"):
        from_json({**plain, "sede": 1}, "config.json")


def test_threads_0_means_all_cores() -> None:
    from dcpg.config.resolve import available_cores

    assert resolve("ppo", "maze", settings={"machine.threads": "0"}).machine.threads == available_cores()


def test_what_does_not_decide_the_result_is_not_in_the_fingerprint() -> None:
    a = resolve("dcpg", "maze", steps=10**6)
    b = resolve("dcpg", "maze", steps=10**7, settings={"checkpoints.minutes": 1, "keep_every": 100000})
    c = resolve("dcpg", "maze", steps=10**6, settings={"algorithm.gamma": 0.99})
    assert fingerprint(a.to_json()) == fingerprint(b.to_json())
    assert fingerprint(a.to_json()) != fingerprint(c.to_json())


@pytest.mark.parametrize("text", ["1000000", "1_000_000", "1e6", "1E6", "0.1e7", "1000000.0"])
def test_steps_may_be_written_with_an_exponent(text: str) -> None:
    assert resolve("ppo", "maze", settings={"steps": text}).steps == 1_000_000


@pytest.mark.parametrize("text", ["1.5", "1e-1", "1e", "million", "inf", "nan", "1e30", "1e99999999999999", ""])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="steps must be a whole number; got"):
        resolve("ppo", "maze", settings={"steps": text})


@pytest.mark.parametrize(
    ("schema", "versions", "advice"),
    [
        (12, {"dcpg": "0.9.1"}, "A newer release wrote it; upgrade dcpg to 0.9.1 or later: pip install --upgrade dcpg"),
        (12, None, "A newer release wrote it; upgrade dcpg: pip install --upgrade dcpg"),
        (3, {"dcpg": "0.0.2"}, "Read it with dcpg 0.0.2, which wrote it, or train the run again."),
        (3, {}, "Read it with the release of dcpg that wrote it, or train the run again."),
        ("9", {}, "The file is damaged; restore it from a copy."),
    ],
)
def test_a_schema_that_cannot_be_read_says_what_to_do(schema: Any, versions: Any, advice: str) -> None:
    plain = {**resolve("dcpg", "maze").to_json(), "schema": schema, "versions": versions}
    with pytest.raises(BadInput) as refused:
        from_json(plain, "runs/x/config.json")
    expected = (
        f"runs/x/config.json: it has schema {schema!r}; this program reads schemas 5, 6, 7, 8, 9, 10, 11. {advice}"
    )
    assert str(refused.value) == expected
