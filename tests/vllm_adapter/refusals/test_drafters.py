"""Drafters that were shown beside scales or queries that turn are served, the others refused by name."""

from __future__ import annotations

import types
from typing import Any

import pytest

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.engine_configuration import draft_as_long_as_served
from posenc_runtime.vllm_adapter.refusals import rotating_attention
from posenc_runtime.vllm_adapter.refusals.drafters import refuse_method
from posenc_runtime.vllm_adapter.refusals.engine import refuse_unsupported
from tests.vllm_adapter.refusals.test_support import LLAMA, config, deployed, engine

REROPE = Deployment(rope_type="rerope", original_max_position_embeddings=256, max_model_len=4096)
YARN = Deployment(rope_type="yarn", scales=(1.0, 16.0), original_max_position_embeddings=256, max_model_len=4096)


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle", "eagle3", "mtp"])
@pytest.mark.parametrize("turns_queries", [True, False], ids=["queries turn", "scales"])
def test_drafters_that_were_shown_are_served(method: str, turns_queries: bool) -> None:
    refuse_method(method, turns_queries=turns_queries)


@pytest.mark.parametrize(
    ("method", "turns_queries", "reason"),
    [
        ("medusa", False, "no test shows"),
        ("extract_hidden_states", True, "no test shows"),
        ("dflash", False, "it reads the table of rotations by position"),
        ("dflash", True, "no test shows"),
        ("suffix", True, "its package arctic-inference is not among"),
    ],
)
def test_another_drafter_is_refused_by_its_method(method: str, turns_queries: bool, reason: str) -> None:
    rule = (
        r"^speculative_config\.method must be one of ngram, draft_model, eagle, eagle3, mtp, "
        rf"got {method}: {reason}.* Choose"
    )
    with pytest.raises(Unsupported, match=rule):
        refuse_method(method, turns_queries=turns_queries)


def drafting(method: str = "draft_model", rope_parameters: Any = LLAMA, **changed: Any) -> types.SimpleNamespace:
    """What is read of vLLM's ``SpeculativeConfig``."""
    drafter = types.SimpleNamespace(hf_text_config=config(rope_parameters), architectures=["LlamaForCausalLMEagle3"])
    settings = {"parallel_drafting": False, "num_speculative_tokens_per_batch_size": None}
    asked = {"use_gemma4_mtp": False, "use_multi_module_mtp": False}
    for name, value in changed.items():
        (asked if name in asked else settings)[name] = value
    methods = {name: lambda value=value: value for name, value in asked.items()}
    return types.SimpleNamespace(method=method, draft_model_config=drafter, **settings, **methods)


def beside(speculative_config: Any, *, on_crossing: str = "rerotate", **changed: Any) -> Any:
    changed.setdefault("model_config__hf_text_config", config(LLAMA))
    vllm_config = deployed(engine(**changed), on_crossing=on_crossing)
    vllm_config.speculative_config = speculative_config
    return vllm_config


@pytest.mark.parametrize("on_crossing", ["rerotate", "recompute", "pin"])
def test_a_drafter_that_rotates_as_the_model_does_is_served_beside_scales(on_crossing: str) -> None:
    refuse_unsupported(beside(drafting(), on_crossing=on_crossing))
    another_base = LLAMA | {"rope_theta": 1e6}
    refuse_unsupported(beside(drafting(rope_parameters=another_base), on_crossing=on_crossing))
    refuse_unsupported(beside(drafting("ngram", rope_parameters=None), on_crossing=on_crossing))


@pytest.mark.parametrize(
    ("rope_parameters", "reason"),
    [
        (None, "LlamaForCausalLMEagle3 has no rotary embedding: choose another drafter"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "have partial_rotary_factor 0.5, and the model's None: choose"),
        (LLAMA | {"rope_type": "llama3"}, "have rope_type llama3, and the model's default: choose another drafter"),
    ],
    ids=["none", "width", "method"],
)
def test_a_drafter_that_rotates_otherwise_is_refused_beside_scales(rope_parameters: Any, reason: str) -> None:
    with pytest.raises(Unsupported, match=rf"^speculative_config\.model must rotate as the model does .*{reason}"):
        refuse_unsupported(beside(drafting(rope_parameters=rope_parameters)))


UNSHOWN = [
    (drafting("mtp", use_gemma4_mtp=True), {}, "Gemma 4's layers that draft"),
    (drafting("mtp", use_multi_module_mtp=True), {}, "several layers that draft one token each"),
    (drafting(parallel_drafting=True), {}, "parallel_drafting"),
    (drafting(num_speculative_tokens_per_batch_size=[(1, 4, 2)]), {}, "num_speculative_tokens_per_batch_size"),
    (drafting(), {"model_config__is_hybrid": True}, "a model with recurrent layers"),
    (drafting(), {"parallel_config__pipeline_parallel_size": 2}, "pipeline_parallel_size above 1"),
]
UNSHOWN_WITH_SCALES = [
    (drafting(), {"model_config__use_mla": True}, r"multi-head latent attention \(MLA\)"),
    (drafting(), {"model_config__uses_mrope": True}, "a model whose tokens have several positions"),
]


@pytest.mark.parametrize(
    ("speculative_config", "changed", "what"),
    [*UNSHOWN, *UNSHOWN_WITH_SCALES],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_not_shown_together_is_refused_by_name(
    speculative_config: Any, changed: dict[str, Any], what: str
) -> None:
    with pytest.raises(Unsupported, match=rf"^speculative_config is not served with scales and {what}"):
        refuse_unsupported(beside(speculative_config, **changed))


@pytest.mark.parametrize(
    ("speculative_config", "changed", "what"), UNSHOWN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_was_not_shown_where_queries_turn_is_refused_by_name(
    speculative_config: Any, changed: dict[str, Any], what: str
) -> None:
    rule = rf"^speculative_config is not served where scaling\.rope_type is rerope and {what}"
    turning = beside(speculative_config, **changed)
    turning.additional_config, turning.kv_transfer_config = {"posenc": REROPE.to_mapping()}, None
    with pytest.raises(Unsupported, match=rule):
        refuse_unsupported(turning)


def test_drafts_are_refused_where_nothing_rotates() -> None:
    unrotated = Deployment(rope_type="none", original_max_position_embeddings=512, max_model_len=512)
    vllm_config = beside(drafting("ngram"))
    vllm_config.additional_config = {"posenc": unrotated.to_mapping()}
    with pytest.raises(Unsupported, match=r"^posenc does not serve speculative_config"):
        refuse_unsupported(vllm_config)


def test_drafts_at_the_end_of_a_scale_need_our_scheduler_even_if_nobody_crosses() -> None:
    stock = {"scheduler_config__scheduler_cls": None}
    refuse_unsupported(deployed(engine(**stock), on_crossing="pin"))
    with pytest.raises(Unsupported, match=r"^scheduler_cls must be .* where speculative_config is given and there are"):
        refuse_unsupported(beside(drafting(), on_crossing="pin", **stock))


def test_attention_does_not_rotate_beside_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating_attention, "_capability", lambda: (9, 0))
    rotating = beside(drafting())
    assert "tokens are drafted" in (rotating_attention.reason_against_rotating(rotating) or "")


@pytest.mark.parametrize("deployment", [REROPE, YARN], ids=["queries turn", "scales"])
@pytest.mark.parametrize(
    ("rope_parameters", "asked", "longest"),
    [({"rope_type": "default", "rope_theta": 1e4}, None, 4096), ({"rope_theta": 1e4}, 100, 256), (None, None, 256)],
    ids=["as long as served", "as long as asked", "does not rotate"],
)
def test_a_drafter_that_rotates_drafts_for_requests_of_every_length(
    rope_parameters: Any, asked: int | None, longest: int, deployment: Deployment
) -> None:
    drafter = types.SimpleNamespace(
        max_model_len=256,
        hf_text_config=types.SimpleNamespace(rope_parameters=rope_parameters),
        architectures=["LlamaForCausalLMEagle3"],
    )
    vllm_config: Any = types.SimpleNamespace(
        model_config=types.SimpleNamespace(max_model_len=4096),
        speculative_config=types.SimpleNamespace(draft_model_config=drafter, max_model_len=asked),
        additional_config={"posenc": deployment.to_mapping()},
    )
    draft_as_long_as_served(vllm_config)
    assert drafter.max_model_len == longest
