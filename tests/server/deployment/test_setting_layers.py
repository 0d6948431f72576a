"""Layers of settings, laid over each other."""

from __future__ import annotations

from server.deployment.setting_layers import merge_layers


def test_a_section_is_laid_over_another_key_by_key_and_any_other_value_as_a_whole() -> None:
    file = {"model": "a", "scaling": {"scales": [1, 2], "headroom_tokens": 64}, "engine": {"options": {"a": 1, "b": 2}}}
    layers = [file, {"scaling": {"scales": [1, 8]}}, {"engine": {"options": {"b": 3}}}, {"model": {"name": "c"}}]
    assert merge_layers(layers) == {
        "model": {"name": "c"},
        "scaling": {"scales": [1, 8], "headroom_tokens": 64},
        "engine": {"options": {"a": 1, "b": 3}},
    }
    assert file["scaling"] == {"scales": [1, 2], "headroom_tokens": 64}


def test_a_value_takes_the_place_of_a_section_and_a_section_that_of_a_value() -> None:
    assert merge_layers([{"engine": {"a": 1}}, {"engine": None}]) == {"engine": None}
    assert merge_layers([{"engine": None}, {"engine": {"a": 1}}]) == {"engine": {"a": 1}}
