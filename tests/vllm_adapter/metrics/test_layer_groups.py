from __future__ import annotations

from posenc_runtime.vllm_adapter.metrics.layer_groups import LayerGroup, layer_groups


def test_layers_that_attend_alike_are_one_group_named_by_their_numbers() -> None:
    layers = [(f"model.layers.{number}.self_attn.attn", "bias", "alibi") for number in (0, 1, 2, 5)]
    layers += [("model.layers.3.self_attn.attn", "stock", "rope"), ("model.layers.7.self_attn.attn", "bias", "alibi")]
    assert layer_groups(layers) == [LayerGroup("0-2,5,7", "bias", "alibi"), LayerGroup("3", "stock", "rope")]


def test_two_workers_with_the_same_layer_name_it_once() -> None:
    layers = [("h.0.attn", "cope", "cope")] * 2
    assert layer_groups(layers) == [LayerGroup("0", "cope", "cope")]
