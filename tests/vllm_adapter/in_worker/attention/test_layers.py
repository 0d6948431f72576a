"""Which backend a layer gets, and what is refused: decided without an engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posenc_runtime.encodings.distance import Flat, Linear, Power
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice, choice_of
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.attention.layers import Asked, refuse, select


def never() -> Any:
    raise AssertionError("weights are not loaded yet")


PLAIN_LAYER = Asked()
ALIBI = Asked(alibi_slopes=[0.5, 0.25])
ALIBI_SQRT = Asked(alibi_slopes=[0.5, 0.25], use_alibi_sqrt=True)
BIAS = Asked(encoding="t5", distance_bias=never)
COPE = Asked(encoding="cope", cope=never)
SHAW = Asked(encoding="shaw", attend=never)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        pytest.param(PLAIN_LAYER, "stock", id="a layer without position encoding of its own"),
        pytest.param(ALIBI, "bias", id="alibi of one of vLLM's models"),
        pytest.param(ALIBI_SQRT, "bias", id="its square root"),
        pytest.param(BIAS, "bias", id="a bias of ours"),
        pytest.param(COPE, "cope", id="contextual positions"),
        pytest.param(SHAW, "plain", id="an encoding without a kernel"),
    ],
)
def test_auto_takes_what_is_made_for_a_layer(asked: Asked, kind: str) -> None:
    assert select(AttentionChoice(), asked, stock_has_alibi_sqrt=False) == kind


@pytest.mark.parametrize(
    ("backend", "asked"),
    [("stock", PLAIN_LAYER), ("stock", ALIBI), ("bias", PLAIN_LAYER), ("bias", ALIBI), ("bias", BIAS), ("cope", COPE)],
)
def test_a_backend_that_can_is_taken_when_asked_for(backend: Any, asked: Asked) -> None:
    assert select(AttentionChoice(backend=backend), asked, stock_has_alibi_sqrt=False) == backend


@pytest.mark.parametrize(
    ("backend", "asked", "message"),
    [
        ("stock", BIAS, r"a distance bias \(t5\), got stock"),
        ("stock", ALIBI_SQRT, r"a distance bias \(alibi_sqrt\), got stock"),
        ("stock", COPE, r"contextual positions \(cope\), got stock"),
        ("stock", SHAW, r"attention in plain PyTorch \(shaw\), got stock"),
        ("bias", COPE, r"contextual positions \(cope\), got bias"),
        ("bias", SHAW, r"attention in plain PyTorch \(shaw\), got bias"),
        ("cope", PLAIN_LAYER, r"ordinary attention \(the model's own\), got cope"),
        ("cope", ALIBI, r"a distance bias \(alibi\), got cope"),
    ],
)
def test_a_backend_that_cannot_is_refused_by_name(backend: Any, asked: Asked, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        select(AttentionChoice(backend=backend), asked, stock_has_alibi_sqrt=False)


def test_the_stock_backend_takes_alibis_square_root_where_it_knows_it() -> None:
    assert select(AttentionChoice(backend="stock"), ALIBI_SQRT, stock_has_alibi_sqrt=True) == "stock"


def test_slopes_of_vllms_models_mean_a_line_or_a_square_root() -> None:
    line, root = ALIBI.form(2), ALIBI_SQRT.form(2)
    assert isinstance(line, Linear) and isinstance(root, Power)
    distance = torch.tensor([0.0, 4.0, 9.0])
    assert line.bias(distance).tolist() == [[0, -2, -4.5], [0, -1, -2.25]]
    assert root.bias(distance).tolist() == [[0, -1, -1.5], [0, -0.5, -0.75]]


def test_a_layer_without_a_bias_is_flat_to_the_bias_backend() -> None:
    form = PLAIN_LAYER.form(3)
    assert isinstance(form, Flat) and form.num_heads == 3


def test_what_kernels_do_not_do_is_refused_by_its_name_and_value() -> None:
    refuse(COPE, sliding_window=None, logits_soft_cap=0)
    with pytest.raises(Unsupported, match=r"sliding_window must be left out .*contextual positions \(cope\), got 128"):
        refuse(COPE, logits_soft_cap=None, sliding_window=128)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"backend": "flash"}, "backend must be one of auto, bias, cope, stock, got 'flash'"),
        ({"window_tolerance": 1.0}, "window_tolerance must be at least 0 and below 1, got 1.0"),
        ({"window_tolerance": -0.1}, "window_tolerance must be at least 0 and below 1, got -0.1"),
        ({"tolerance": 0.1}, "known keys are backend, window_tolerance, fused_rotary, .*, got tolerance"),
        ({"fused_rotary": True}, "fused_rotary must be one of auto, on, off, got True"),
        ({"fused_keys": "half"}, "fused_keys must be one of pure, stock, got 'half'"),
    ],
)
def test_a_choice_out_of_range_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionChoice.from_mapping(values)


def test_a_choice_travels_to_every_process() -> None:
    class Config:
        additional_config = {"posenc_attention": AttentionChoice(backend="bias").to_mapping()}  # noqa: RUF012

    assert choice_of(Config()) == AttentionChoice(backend="bias")  # type: ignore[arg-type]
    assert choice_of(None) is None
