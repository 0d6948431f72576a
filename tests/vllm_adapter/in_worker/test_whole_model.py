"""The model that a rotary embedding is a part of, found while it is built, and its size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from posenc_runtime.vllm_adapter.in_worker.whole_model import WholeModel, num_weight_bytes


class Attention(nn.Module):
    def __init__(self, rotary: nn.Module | None) -> None:
        super().__init__()
        self.projection = nn.Linear(4, 4, bias=False)
        self.rotary = rotary


class Model(nn.Module):
    """As vLLM builds them: layers in a list, a rotary embedding that all of them share, a head beside."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.layers = nn.ModuleList([Attention(rotary) for _ in range(3)])
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight


class Served(nn.Module):
    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.model = Model(rotary)


def test_the_model_is_what_its_rotary_embedding_was_put_into_last() -> None:
    rotary = nn.Module()
    whole = WholeModel(rotary)
    Model(nn.Module())  # another one
    served = Served(rotary)
    assert whole.found(served.model.layers) is served
    nn.Sequential(served)
    assert whole.found([]) is served  # it was asked for


def test_layers_that_are_outside_of_what_was_found_are_an_error_and_not_forgotten() -> None:
    rotary = nn.Module()
    whole = WholeModel(rotary)
    served = Served(rotary)
    with pytest.raises(
        ValueError, match="1 attention layers are outside of the Served that has the rotary embedding: serve"
    ):
        whole.found([*served.model.layers, Attention(None)])


def test_weights_that_are_shared_are_read_once_and_those_of_another_device_never() -> None:
    served = Served(nn.Module())
    assert num_weight_bytes(served) == 4 * (8 * 4 + 3 * 4 * 4)
    served.elsewhere = nn.Linear(4, 4, device="meta")
    assert num_weight_bytes(served) == 4 * (8 * 4 + 3 * 4 * 4)


@pytest.mark.parametrize(
    ("sizes", "num_values"),
    [
        ({"input_size": 6, "output_size": 10}, 60),
        ({"input_size": 6, "output_size": 10, "input_size_per_partition": 3, "output_size_per_partition": 10}, 30),
    ],
    ids=["whole", "of-two-workers"],
)
def test_weights_that_a_library_has_packed_count_by_the_sizes_of_their_layer(
    sizes: dict[str, int], num_values: int
) -> None:
    linear = nn.Module()
    linear.weight = nn.Parameter(torch.empty(0, dtype=torch.bfloat16))
    for name, size in sizes.items():
        setattr(linear, name, size)
    assert num_weight_bytes(nn.Sequential(linear, nn.Linear(4, 4, bias=False))) == 2 * num_values + 4 * 16
