"""At which scale a request starts."""

from __future__ import annotations

import dataclasses

import pytest

from posenc_runtime.kv.admission import admit, choose_on_crossing
from posenc_runtime.kv.deployment import Deployment
from tests.kv.test_deployment import YARN

PINNED = dataclasses.replace(YARN, on_crossing="pin")


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "admission_tokens", "scale"),
    [
        (100, 412, 512, 1.0),
        (100, 413, 513, 2.0),
        (512, 0, 512, 1.0),
        (2000, 16, 2016, 4.0),
        (2000, 1000, 2048, 4.0),  # the engine stops it at max_model_len
        (100, None, 356, 1.0),  # headroom
        (400, None, 656, 2.0),
    ],
)
def test_a_pinned_request_is_admitted_at_the_longest_it_may_become(
    num_prompt_tokens: int, max_tokens: int | None, admission_tokens: int, scale: float
) -> None:
    for admission in (
        admit(PINNED, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens),
        admit(YARN, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens, on_crossing="pin"),
    ):
        assert admission.admission_tokens == admission_tokens
        assert YARN.scales[admission.scale_index] == scale
        assert admission.on_crossing == "pin"


@pytest.mark.parametrize("on_crossing", [None, "rerotate", "recompute"])
@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "admission_tokens", "scale"),
    [
        (100, 4000, 356, 1.0),  # headroom
        (256, 256, 512, 1.0),
        (257, 256, 513, 2.0),
        (500, 12, 512, 1.0),
        (100, None, 356, 1.0),
    ],
)
def test_a_request_that_may_cross_is_admitted_for_the_headroom_at_most(
    on_crossing: str | None, num_prompt_tokens: int, max_tokens: int | None, admission_tokens: int, scale: float
) -> None:
    admission = admit(YARN, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens, on_crossing=on_crossing)
    assert admission.admission_tokens == admission_tokens
    assert YARN.scales[admission.scale_index] == scale


@pytest.mark.parametrize(
    ("num_prompt_tokens", "prefilled_scale", "admission_tokens"),
    [
        (300, 1.0, 512),  # by its own length it would begin at scale 2
        (512, 1.0, 512),
        (100, 4.0, 356),
        (300, 2.0, 556),
    ],
)
def test_a_prompt_that_another_engine_has_prefilled_begins_at_the_scale_of_its_keys(
    num_prompt_tokens: int, prefilled_scale: float, admission_tokens: int
) -> None:
    admission = admit(YARN, num_prompt_tokens=num_prompt_tokens, max_tokens=900, prefilled_scale=prefilled_scale)
    assert YARN.scales[admission.scale_index] == prefilled_scale
    assert admission.admission_tokens == admission_tokens


@pytest.mark.parametrize(
    ("num_prompt_tokens", "prefilled_scale", "on_crossing", "rule"),
    [
        (513, 1.0, None, "scale 1, at which the prompt was prefilled, must reach its 513 tokens, but it ends at 512"),
        (300, 3.0, None, "must be prefilled at one of the scales 1, 2, 4 of this deployment, got 3"),
        (300, 1.0, "pin", "on_crossing must not be pin where .* at scale 1, because this request needs scale 4"),
    ],
)
def test_a_scale_at_which_a_request_cannot_begin_is_refused(
    num_prompt_tokens: int, prefilled_scale: float, on_crossing: str | None, rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        admit(
            YARN,
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=900,
            on_crossing=on_crossing,
            prefilled_scale=prefilled_scale,
        )


def test_a_pinned_request_takes_keys_of_the_scale_that_it_needs() -> None:
    admission = admit(YARN, num_prompt_tokens=300, max_tokens=900, on_crossing="pin", prefilled_scale=4.0)
    assert (YARN.scales[admission.scale_index], admission.admission_tokens) == (4.0, 1200)


@pytest.mark.parametrize(
    ("deployment", "asked", "rule"),
    [
        (YARN, "hope", "on_crossing must be one of rerotate, recompute, pin, got 'hope'"),
        (YARN, 3, "on_crossing must be one of rerotate, recompute, pin, got 3"),
        (
            PINNED,
            "rerotate",
            "on_crossing must be pin, got rerotate: this deployment serves one scale only or pins every request, so no "
            "request can cross",
        ),
        (
            dataclasses.replace(YARN, on_crossing="recompute"),
            "rerotate",
            "on_crossing must be recompute or pin, got rerotate: a request may choose rerotate only if the "
            "deployment's own on_crossing is rerotate, because only then start-up checks that cached keys can be "
            "turned",
        ),
    ],
)
def test_a_choice_that_is_not_to_be_had_is_refused(deployment: Deployment, asked: object, rule: str) -> None:
    with pytest.raises(ValueError) as caught:
        choose_on_crossing(deployment, asked)
    assert str(caught.value) == rule


def test_where_nothing_can_cross_every_request_is_pinned_without_asking() -> None:
    one_scale = Deployment(rope_type="default", original_max_position_embeddings=512, max_model_len=512)
    assert one_scale.on_crossing == "rerotate"
    assert choose_on_crossing(one_scale, None) == choose_on_crossing(one_scale, "pin") == "pin"


def test_the_headroom_decides_for_a_request_that_does_not_say() -> None:
    generous = dataclasses.replace(YARN, headroom_tokens=2000)
    assert admit(generous, num_prompt_tokens=100, max_tokens=None).scale_index == 2


def test_a_prompt_longer_than_the_served_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a prompt may have at most 2048 tokens, got 2049"):
        admit(YARN, num_prompt_tokens=2049, max_tokens=1)
