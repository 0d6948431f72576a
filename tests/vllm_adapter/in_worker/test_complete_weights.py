"""Weights that a checkpoint lacks are noticed by their elements, whatever vLLM's loader says that it has loaded."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from posenc_runtime.vllm_adapter.in_worker.complete_weights import WeightsRefused, completely

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
ROWS_OF_QKV, NUM_EXPERTS = 8, 4


class Layer(nn.Module):
    """Parameters of a module that vLLM's check leaves out, as memory may hold them before loading."""

    def __init__(self, method: Any, dtype: torch.dtype, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.__dict__["quant_method"] = method.__new__(method)  # one of vLLM's methods is a module, and not set up here
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.ones(shape, dtype=dtype), requires_grad=False))


class Model(nn.Module):
    """Its norm is not filled: vLLM's own check finds it."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.qkv_proj = Layer(UnquantizedLinearMethod, dtype, weight=(ROWS_OF_QKV, 4), bias=(ROWS_OF_QKV,))
        self.experts = Layer(
            UnquantizedFusedMoEMethod, dtype, w13_weight=(NUM_EXPERTS, 6, 4), w2_weight=(NUM_EXPERTS, 4, 3)
        )
        self.norm = nn.Parameter(torch.ones(4, dtype=dtype))
        self.head = Layer(UnquantizedLinearMethod, dtype)
        self.head.weight = self.qkv_proj.weight


def loaded(model: nn.Module, load: Callable[[nn.Module], None], model_config: Any = None, **loader: Any) -> None:
    completely(lambda self, model, model_config: load(model))(types.SimpleNamespace(**loader), model, model_config)


def load_all_but(*left: tuple[str, Any]) -> Callable[[nn.Module], None]:
    """Sets all elements to 2 but those at an index of a parameter."""

    def load(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            kept = [(index, parameter.data[index].clone()) for its_name, index in left if its_name == name]
            parameter.data.fill_(2)
            for index, before in kept:
                parameter.data[index] = before

    return load


@DTYPES
def test_a_model_of_which_all_is_loaded_has_what_was_loaded(dtype: torch.dtype) -> None:
    model = Model(dtype)
    loaded(model, load_all_but())
    assert all((parameter == 2).all() for parameter in model.parameters())


@DTYPES
@pytest.mark.parametrize(
    ("name", "index", "told"),
    [
        pytest.param("qkv_proj.weight", ..., "lacks qkv_proj.weight: download", id="a-matrix"),
        pytest.param("qkv_proj.weight", slice(4, 6), "lacks qkv_proj.weight (rows 4 to 5 of 8): download", id="a-part"),
        pytest.param("qkv_proj.bias", slice(6, 8), "lacks qkv_proj.bias (rows 6 to 7 of 8): download", id="a-bias"),
        pytest.param("experts.w2_weight", 2, "lacks experts.w2_weight (experts 2 to 2 of 4): download", id="an-expert"),
        pytest.param(
            "experts.w13_weight", (1, slice(3, 6)), "lacks experts.w13_weight (experts 1 to 1 of 4): download",
            id="the-up-matrix-of-an-expert",
        ),
    ],
)  # fmt: skip
def test_what_was_not_loaded_is_named(dtype: torch.dtype, name: str, index: Any, told: str) -> None:
    with pytest.raises(WeightsRefused) as refused:
        loaded(Model(dtype), load_all_but((name, index)))
    assert told in str(refused.value)


def test_many_that_were_not_loaded_are_counted() -> None:
    with pytest.raises(WeightsRefused, match=r"qkv_proj.weight; qkv_proj.bias; experts.w13_weight, and 1 more: "):
        loaded(Model(), lambda model: None)


@DTYPES
def test_what_pads_experts_in_memory_becomes_zero(dtype: torch.dtype) -> None:
    model = Model(dtype)
    loaded(
        model,
        load_all_but(("experts.w13_weight", (..., slice(3, 4))), ("experts.w2_weight", (slice(None), slice(3, 4)))),
    )
    experts = cast(Any, model.experts)
    assert (experts.w13_weight[..., :3] == 2).all() and (experts.w13_weight[..., 3:] == 0).all()
    assert (experts.w2_weight[:, :3] == 2).all() and (experts.w2_weight[:, 3:] == 0).all()


@DTYPES
def test_a_checkpoint_with_numbers_that_are_not_finite_is_complete(dtype: torch.dtype) -> None:
    def load(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.data.fill_(torch.nan)

    loaded(Model(dtype), load)


def test_where_vllms_check_is_off_nothing_is_filled_or_checked() -> None:
    model = Model()
    loaded(model, lambda model: None, enable_weights_track=False)
    assert all((parameter == 1).all() for parameter in model.parameters())


@pytest.mark.parametrize("runner_type", ["draft", "generate"])
def test_only_a_drafter_may_get_weights_after_it_was_loaded(runner_type: str) -> None:
    missing, model_config = load_all_but(("qkv_proj.weight", ...)), types.SimpleNamespace(runner_type=runner_type)
    if runner_type == "draft":
        loaded(Model(), missing, model_config)
    else:
        with pytest.raises(WeightsRefused, match=r"lacks qkv_proj\.weight"):
            loaded(Model(), missing, model_config)
