"""A deployment whose queries turn: what it has no use for is refused, and what changes a distance names it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from posenc_runtime.kv.deployment import Deployment

REROPE = Deployment(rope_type="rerope", original_max_position_embeddings=256, max_model_len=4096)
DUAL_CHUNK = dataclasses.replace(REROPE, rope_type="dual_chunk")


@pytest.mark.parametrize("deployment", [REROPE, DUAL_CHUNK], ids=lambda each: each.rope_type)
def test_it_travels_as_plain_values_and_has_neither_scales_nor_crossings(deployment: Deployment) -> None:
    assert Deployment.from_mapping(json.loads(json.dumps(deployment.to_mapping()))) == deployment
    assert deployment.turns_queries
    assert not (deployment.scales_keys or deployment.crosses or deployment.rerotates or deployment.reuses_prefixes)


@pytest.mark.parametrize("deployment", [REROPE, DUAL_CHUNK], ids=lambda each: each.rope_type)
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("scales", (1.0, 2.0), r"\[1.0, 2.0\]"),
        ("headroom_tokens", 128, "128"),
        ("on_crossing", "pin", "pin"),
        ("rerotate_budget_tokens", 64, "64"),
        ("prefix_reuse", "rerotate", "rerotate"),
    ],
)
def test_what_belongs_to_scales_must_be_left_out(deployment: Deployment, name: str, value: Any, said: str) -> None:
    rule = f"^{name} must be left out where rope_type is {deployment.rope_type}, .* no scales, got {said}$"
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(deployment, **{name: value})


@pytest.mark.parametrize(
    ("parameters", "rule"),
    [
        ({"window": 80, "page": 32}, "window must be a multiple of the page of 32 tokens, got 80: take 64 or 96"),
        ({"window": 32, "page": 64}, "page must be at most the window of 32 tokens, .* got 64: take a smaller page"),
        ({"window": 512, "page": 32}, "window and page must together be at most .* 256 .* got 512 and 32: take a wind"),
        ({"window": 256, "page": 32}, "window and page must together be at most .* got 256 and 32: take .* 224 or"),
        ({"temperature": "warm"}, "temperature must be one of none, logn, yarn, got 'warm'"),
    ],
    ids=["window between pages", "page above window", "window above trained", "window at trained", "temperature"],
)
def test_a_window_that_does_not_fit_is_refused_with_what_would(parameters: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(REROPE, parameters=parameters)


def test_a_parameter_of_another_method_is_refused() -> None:
    with pytest.raises(TypeError, match="chunk_size"):
        dataclasses.replace(REROPE, parameters={"chunk_size": 128})


@pytest.mark.parametrize(
    "changed",
    [
        {"parameters": {"window": 64}},
        {"parameters": {"page": 64}},
        {"parameters": {"temperature": "none"}},
        {"parameters": {"leak": 4.0}},
        {"original_max_position_embeddings": 512},
        {"rope_type": "dual_chunk"},
        {"rope_type": "default", "allow_beyond_trained": True},
    ],
    ids=lambda changed: "-".join((*changed.get("parameters", {}), *(key for key in changed if key != "parameters"))),
)
def test_deployments_that_read_keys_at_other_distances_have_other_fingerprints(changed: dict[str, Any]) -> None:
    assert dataclasses.replace(REROPE, **changed).fingerprint != REROPE.fingerprint


def test_a_longer_deployment_has_the_same_fingerprint() -> None:
    assert dataclasses.replace(REROPE, max_model_len=8192).fingerprint == REROPE.fingerprint


# Each with the size of the cache's blocks.
UNLIKE = {
    "rerope": (REROPE, 16),
    "another window": (dataclasses.replace(REROPE, parameters={"window": 64}), 16),
    "another page": (dataclasses.replace(REROPE, parameters={"page": 64}), 16),
    "another default page, by its blocks": (REROPE, 28),
    "no temperature": (dataclasses.replace(REROPE, parameters={"temperature": "none"}), 16),
    "another temperature": (dataclasses.replace(REROPE, parameters={"temperature": "yarn"}), 16),
    "a leak": (dataclasses.replace(REROPE, parameters={"leak": 4.0}), 16),
    "another leak": (dataclasses.replace(REROPE, parameters={"leak": 4.5}), 16),
    "another trained length": (
        dataclasses.replace(
            REROPE, original_max_position_embeddings=288, parameters={"window": 128, "page": 32, "temperature": "none"}
        ),
        16,
    ),
    "dual chunks": (dataclasses.replace(DUAL_CHUNK, parameters={"chunk_size": 160, "local_size": 32}), 16),
    "a larger chunk": (dataclasses.replace(DUAL_CHUNK, parameters={"chunk_size": 192, "local_size": 64}), 16),
    "chunks, tempered from elsewhere": (
        dataclasses.replace(
            DUAL_CHUNK,
            parameters={"chunk_size": 160, "local_size": 32, "original_max_position_embeddings": 200},
        ),
        16,
    ),
}


def test_whatever_later_keys_depend_on_is_told_apart_in_a_shared_cache() -> None:
    named = {name: deployment.pages(block).fingerprint for name, (deployment, block) in UNLIKE.items()}
    assert len(set(named.values())) == len(named), named


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (UNLIKE["rerope"], (dataclasses.replace(REROPE, max_model_len=8192), 16)),
        (UNLIKE["rerope"], (dataclasses.replace(REROPE, parameters={"window": 128, "page": 32}), 16)),
        (UNLIKE["rerope"], (dataclasses.replace(REROPE, parameters={"temperature": "logn"}), 32)),
        (
            UNLIKE["dual chunks"],
            (
                dataclasses.replace(
                    DUAL_CHUNK,
                    parameters={"chunk_size": 160, "local_size": 32, "original_max_position_embeddings": 256},
                ),
                32,
            ),
        ),
        (
            (dataclasses.replace(DUAL_CHUNK, parameters={"original_max_position_embeddings": 0}), 16),
            (
                dataclasses.replace(
                    DUAL_CHUNK, parameters={"temperature": "none", "original_max_position_embeddings": 200}
                ),
                16,
            ),
        ),
    ],
    ids=["a longer one", "defaults that are written", "other blocks", "chunks with defaults", "no temperature"],
)
def test_deployments_with_the_same_later_keys_share_a_cache(
    one: tuple[Deployment, int], other: tuple[Deployment, int]
) -> None:
    assert one[0].pages(one[1]).fingerprint == other[0].pages(other[1]).fingerprint
