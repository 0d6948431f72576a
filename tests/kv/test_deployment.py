"""The strict form of a deployment's scaling."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch

from posenc_runtime.encodings.scaling import available, method
from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.kv.deployment import Deployment
from tests.tolerance import ORACLE_FLOAT64

YARN = Deployment(
    rope_type="yarn",
    parameters={"beta_fast": 16.0},
    scales=(1.0, 2.0, 4.0),
    original_max_position_embeddings=512,
    max_model_len=2048,
)


def test_a_deployment_travels_as_plain_values_and_comes_back_equal() -> None:
    assert Deployment.from_mapping(json.loads(json.dumps(YARN.to_mapping()))) == YARN


@pytest.mark.parametrize(
    "smallest",
    [
        {"headroom_tokens": 1},
        {"rerotate_budget_tokens": 1},
        {"original_max_position_embeddings": 1, "max_model_len": 4},
    ],
    ids=lambda smallest: next(iter(smallest)),
)
def test_what_must_be_at_least_1_may_be_1(smallest: dict[str, int]) -> None:
    served = dataclasses.replace(YARN, **smallest)
    assert smallest.items() <= vars(served).items()
    for name in smallest.keys() - {"max_model_len"}:
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            dataclasses.replace(YARN, **{name: 0})


def test_any_base_above_1_is_taken() -> None:
    assert Deployment.from_mapping(YARN.to_mapping() | {"rope_theta": 1.5}).rope_theta == 1.5


def test_only_what_has_no_default_must_be_given() -> None:
    small = Deployment.from_mapping(
        {"rope_type": "linear", "original_max_position_embeddings": 512, "max_model_len": 1024, "scales": [1, 2]}
    )
    assert small.headroom_tokens == 256 and small.on_crossing == "rerotate" and small.scales == (1.0, 2.0)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"rope_typ": "yarn"}, "keys must be among .*rope_type.*, got rope_typ"),
        ({"rope_type": "longropes"}, "rope_type must be one of .*, got 'longropes'"),
        ({"headroom_tokens": 0}, "headroom_tokens must be at least 1, got 0"),
        ({"on_crossing": "hope"}, "on_crossing must be one of rerotate, recompute, pin, got 'hope'"),
        ({"prefix_reuse": "maybe"}, "prefix_reuse must be one of exact, rerotate, continue, got 'maybe'"),
        ({"rerotate_budget_tokens": 0}, "rerotate_budget_tokens must be at least 1, got 0"),
        ({"rope_theta": 0.5}, "rope_theta must be greater than 1, got 0.5"),
        (
            {"rope_theta": 2e4, "scales": [1], "max_model_len": 512},
            r"rope_theta needs a scale above 1, got 20000.0 and scales \[1.0\]: add a scale, or leave rope_theta out",
        ),
        ({"original_max_position_embeddings": 0}, "original_max_position_embeddings must be at least 1, got 0"),
        ({"rope_type": "default", "parameters": {}}, r"scales must be \[1\] when rope_type is default"),
        (
            {"allow_beyond_trained": True},
            r"allow_beyond_trained is only for scales \[1\], got \[1.0, 2.0, 4.0\]",
        ),
        ({"max_model_len": 2049}, "scales must cover max_model_len 2049"),
        ({"max_model_len": 2048.5}, "max_model_len must be a whole number, got 2048.5"),
        ({"max_model_len": True}, "max_model_len must be a whole number, got True"),
        ({"rope_theta": 1.0}, "rope_theta must be greater than 1, got 1.0"),
        ({"rope_theta": float("inf")}, "rope_theta must be a finite number, got inf"),
        ({"scales": "124"}, "scales must be a list, each a finite number, got '124'"),
        ({"scales": {1: 2, 4: 5}}, "scales must be a list, each a finite number, got {1: 2, 4: 5}"),
        ({"scales": [1, 1e300]}, "scales must reach at most 2147483647 tokens, got 1e[+]300 times the trained 512"),
        ({"scales": [1, 4.0000001, 4.0000002]}, "scales must differ in their first six digits"),
        (
            {"rope_type": "default", "allow_beyond_trained": "no"},
            "allow_beyond_trained must be true or false, got 'no'",
        ),
        ({"parameters": {"attention_factor": float("nan")}}, "attention_factor must be a finite number, got nan"),
        ({"parameters": {"truncate": "no"}}, "truncate must be true or false, got 'no'"),
        ({"parameters": [1]}, r"parameters must be a mapping, got \[1\]"),
    ],
)
def test_a_bad_mapping_is_refused_with_the_rule_and_the_value(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Deployment.from_mapping(YARN.to_mapping() | changed)


@pytest.mark.parametrize(
    ("changed", "crosses", "rerotates"),
    [
        ({}, True, True),
        ({"on_crossing": "recompute"}, True, False),
        ({"on_crossing": "pin"}, False, False),
        ({"on_crossing": "pin", "prefix_reuse": "rerotate"}, False, True),
        ({"prefix_reuse": "rerotate", "scales": (1.0,), "max_model_len": 512}, False, False),
    ],
    ids=["rerotate", "recompute", "pin", "pin-with-reuse", "one-scale"],
)
def test_what_a_deployment_needs_follows_from_its_settings(
    changed: dict[str, Any], crosses: bool, rerotates: bool
) -> None:
    deployment = dataclasses.replace(YARN, **changed)
    assert (deployment.crosses, deployment.rerotates) == (crosses, rerotates)


def test_only_scales_above_1_use_the_deployments_base_and_trained_length() -> None:
    deployment = dataclasses.replace(YARN, rope_theta=1e6)
    own = RotarySpec(rotary_dim=64, rope_theta=1e4, original_max_position_embeddings=4096)
    pairs = torch.arange(32, dtype=torch.float64)
    torch.testing.assert_close(
        deployment.frequencies(own, 0).inv_freq, 1e4 ** (-pairs / 32), rtol=ORACLE_FLOAT64, atol=0
    )
    # YaRN (arXiv:2309.00071), section 3.2: a pair that turns fewer than beta_slow times within 512 tokens is slowed.
    plain = 1e6 ** (-pairs / 32)
    slowed = deployment.frequencies(own, 2).inv_freq / plain
    assert (slowed[512 * plain / (2 * math.pi) < 0.8] == 0.25).all()
    assert (slowed[512 * plain / (2 * math.pi) > 20.0] == 1.0).all()


@pytest.mark.parametrize(
    "changed",
    [
        {"parameters": {"mscale": 1.0, "mscale_all_dim": 1e300}},
        {"parameters": {"attention_factor": 1e300}},
        {"rope_theta": 1e300},
    ],
    ids=["too small for float32", "too large for float32", "a pair that never turns"],
)
def test_parameters_that_give_no_rotation_for_a_checkpoint_are_refused(changed: dict[str, Any]) -> None:
    own = RotarySpec(rotary_dim=64, rope_theta=1e4, original_max_position_embeddings=512)
    with pytest.raises(ValueError, match="that are finite and greater than 0 in float32"):
        dataclasses.replace(YARN, **changed).check_rotations(own)
    YARN.check_rotations(own)


@pytest.mark.parametrize("rope_type", [name for name in available() if "default" in method(name).own_rope_types])
def test_every_method_for_plain_checkpoints_gives_rotations(rope_type: str) -> None:
    """Two of them let pairs stand still."""
    own = RotarySpec(rotary_dim=64, rope_theta=1e4, original_max_position_embeddings=512)
    given = {"long_factor": [2.0] * 32} if rope_type == "longrope" else {}
    scales = (1.0,) if rope_type == "default" else (1.0, 4.0)
    dataclasses.replace(
        YARN, rope_type=rope_type, parameters=given, scales=scales, max_model_len=int(scales[-1] * 512)
    ).check_rotations(own)


def test_what_is_no_mapping_is_no_deployment() -> None:
    with pytest.raises(ValueError, match="a deployment must be a mapping, got 'yarn'"):
        Deployment.from_mapping("yarn")  # type: ignore[arg-type]


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match="original_max_position_embeddings, max_model_len must be given"):
        Deployment.from_mapping({"rope_type": "yarn"})


@pytest.mark.parametrize("rope_type", ["default", "yarn"])
def test_scale_1_alone_serves_past_the_trained_length_only_when_told_to(rope_type: str) -> None:
    values = {"rope_type": rope_type, "original_max_position_embeddings": 512, "max_model_len": 4096}
    with pytest.raises(ValueError, match="scales must cover max_model_len 4096"):
        Deployment.from_mapping(values)
    beyond = Deployment.from_mapping(values | {"allow_beyond_trained": True})
    assert beyond.scale_set.lengths == (4096,)


@pytest.mark.parametrize(
    "changed",
    [
        {"rope_type": "linear", "parameters": {}},
        {"parameters": {"beta_fast": 17.0}},
        {"original_max_position_embeddings": 513},
        {"rope_theta": 20000.0},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_changes_a_rotation_changes_the_fingerprint(changed: dict[str, Any]) -> None:
    assert dataclasses.replace(YARN, **changed).fingerprint != YARN.fingerprint


def test_what_changes_no_rotation_leaves_the_fingerprint_alone() -> None:
    longer = dataclasses.replace(YARN, headroom_tokens=7, scales=(1.0, 2.0, 4.0, 8.0), max_model_len=4096)
    assert longer.fingerprint == YARN.fingerprint
