"""Asks the checks of an engine's start whether they refuse a setting, on each device, and why."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal
from unittest import mock

from vllm.config import KVTransferConfig
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import CONNECTOR, KEYED_CONNECTORS
from posenc_runtime.vllm_adapter.refusals import engine as checks
from posenc_runtime.vllm_adapter.refusals import moving_requests, shared_caches
from posenc_runtime.vllm_adapter.refusals.arguments import refuse_arguments
from posenc_runtime.vllm_adapter.refusals.engine import refuse_unsupported
from posenc_runtime.vllm_adapter.refusals.shared_caches import needs_keys
from posenc_runtime.vllm_adapter.settings.arguments.tiers import with_tiers
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from tests.vllm_adapter.refusals.test_drafters import drafting
from tests.vllm_adapter.refusals.test_shared_caches import engine_args
from tests.vllm_adapter.refusals.test_support import LLAMA, config, engine

Device = Literal["CPU", "GPU"]
DEVICES: tuple[Device, ...] = ("CPU", "GPU")

TRAINED, LONGEST = 4096, 8192  # tokens
_HOPPER = DeviceCapability(9, 0)
# Where vLLM's configuration keeps what the checks read, by the name of the engine's argument.
_PLACES = {
    "async_scheduling": "scheduler_config__async_scheduling",
    "data_parallel_size": "parallel_config__data_parallel_size",
    "decode_context_parallel_size": "parallel_config__decode_context_parallel_size",
    "enable_chunked_prefill": "scheduler_config__enable_chunked_prefill",
    "enable_dbo": "parallel_config__use_ubatching",
    "enable_elastic_ep": "parallel_config__enable_elastic_ep",
    "enable_prefix_caching": "cache_config__enable_prefix_caching",
    "enable_return_routed_experts": "aux_output_config__enabled",
    "kv_cache_dtype": "cache_config__cache_dtype",
    "pipeline_parallel_size": "parallel_config__pipeline_parallel_size",
    "prefill_context_parallel_size": "parallel_config__prefill_context_parallel_size",
    "scheduling_policy": "scheduler_config__policy",
    "tensor_parallel_size": "parallel_config__tensor_parallel_size",
    "ubatch_size": "parallel_config__use_ubatching",
}
# No check reads these in vLLM's configuration; should one do so, it does not find them, and fails.
_UNREAD = {"enable_lora", "enforce_eager", "kv_events_config", "quantization"}
_ELSEWHERE = {"kv_transfer_config", "kv_offloading_size", "kv_offloading_backend", "speculative_config"}


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a user asks for.

    Attributes:
        arguments: of vLLM's engine. The connector of ``kv_transfer_config`` stands beside ours where there are scales,
            unless ``in_our_place``.
        model: what vLLM's ``ModelConfig`` says of the model, by the name of the attribute.
        drafter: what vLLM's ``SpeculativeConfig`` says of the drafter, by the name of the method.
        check: a check that start-up makes elsewhere; it raises what start-up raises.
    """

    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    drafter: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    in_our_place: bool = False
    check: Callable[[Deployment], None] | None = None


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why something is refused, and what to do instead; ``advice`` may be empty."""

    reason: str
    advice: str


def refusal(asked: Asked, device: Device, **scaling: Any) -> Refusal | None:
    """What start-up says against a setting; None where it is served.

    Args:
        scaling: of the deployment, beside its lengths.
    """
    deployment = Deployment(
        **{"original_max_position_embeddings": TRAINED, "max_model_len": LONGEST} | scaling  # type: ignore[arg-type]
    )
    try:
        with _running_on(device), _without_what_others_show():
            given = _arguments(asked, deployment)
            refuse_arguments(given)
            refuse_unsupported(_configuration(asked, given, deployment))
            if asked.check is not None:
                asked.check(deployment)
            _refuse_what_vllm_does_not_keep(asked.arguments.get("kv_cache_dtype", "auto"), device)
    except (Unsupported, SettingRefused) as error:
        return taken_apart(str(error))
    return None


def taken_apart(message: str) -> Refusal:
    """Reason and advice of an error that is worded ``rule: reason. Advice``, or ``rule, because reason: advice``."""
    rule, _, rest = re.sub(r"^[\w.]+: ", "", message).partition(": ")
    if ", because " in rule:
        return Refusal(rule.partition(", because ")[2], rest)
    reason, _, advice = rest.rpartition(". ")
    if not reason:
        reason, _, advice = rest.partition(": ")
    if not reason:
        raise ValueError(f"a refusal must give a reason after a colon, got {message!r}")
    return Refusal(reason, advice[:1].lower() + advice[1:])


@contextlib.contextmanager
def _without_what_others_show() -> Iterator[None]:
    """Leave out whether packages are installed, and what ``docs/architectures.md`` says of a model's sources."""
    with (
        mock.patch.dict(shared_caches._PACKAGES, clear=True),
        mock.patch.object(checks, "refuse_checkpoint"),
        mock.patch.object(moving_requests, "reads_prompts_both_ways", return_value=False),
    ):
        yield


@contextlib.contextmanager
def _running_on(device: Device) -> Iterator[None]:
    on_cuda = device == "GPU"
    with mock.patch.multiple(
        type(current_platform),
        is_cpu=lambda _: not on_cuda,
        is_cuda=lambda _: on_cuda,
        get_device_capability=lambda *_: _HOPPER if on_cuda else None,
    ):
        yield


def _refuse_what_vllm_does_not_keep(cache_dtype: Any, device: Device) -> None:
    """Refuse what vLLM itself refuses, where we do not: it would look served otherwise."""
    of_the_model = cache_dtype in ("float16", "bfloat16")  # by its name; vLLM's attention calls it auto
    if cache_dtype == "fp8_inc":
        raise Unsupported(
            f"kv_cache_dtype must not be {cache_dtype}: only Gaudi has it, and posenc does not run there. Leave it out"
        )
    if device == "CPU" and not of_the_model and not CPUAttentionBackend.supports_kv_cache_dtype(cache_dtype):
        raise Unsupported(f"got {cache_dtype}: on a CPU, vLLM's attention keeps nothing in it. Choose another one")


def _arguments(asked: Asked, deployment: Deployment) -> Any:
    """What a user gives vLLM."""
    given = dict(asked.arguments)
    if unknown := given.keys() - _PLACES.keys() - _UNREAD - _ELSEWHERE:
        raise ValueError(f"arguments must be among those that asking.py knows, got {', '.join(sorted(unknown))}")
    transfer = given.get("kv_transfer_config")
    if transfer is not None and not deployment.turns_queries and not asked.in_our_place:
        beside = {"kv_connector_extra_config": {"connectors": [transfer]}}
        given["kv_transfer_config"] = {"kv_connector": CONNECTOR, "kv_role": "kv_both", **beside}
    return engine_args(**{"runner": "auto", **given, "additional_config": {"posenc": deployment.to_mapping()}})


def _configuration(asked: Asked, given: Any, deployment: Deployment) -> Any:
    """What vLLM makes of it, with what we add."""
    changed = {_PLACES[name]: value for name, value in asked.arguments.items() if name in _PLACES}
    for name in ("enable_dbo", "ubatch_size"):
        if name in asked.arguments:
            changed[_PLACES[name]] = True
    changed |= {"model_config__hf_text_config": config(LLAMA), "model_config__max_model_len": LONGEST}
    changed |= {"model_config__is_mm_prefix_lm": False, "model_config__rswa_window": None}
    changed |= {"cache_config__block_size": 32, "cache_config__user_specified_block_size": True}
    changed |= {f"model_config__{name}": value for name, value in asked.model.items()}
    made = engine(**changed)
    made.additional_config = given.additional_config
    made.attention_config = mock.Mock(backend=None, backend_per_kind={})
    made.kv_transfer_config = _transfer(given, deployment)
    if (drafted := given.speculative_config) is not None:
        said = {name: value for name, value in drafted.items() if name != "method"}
        made.speculative_config = drafting(drafted["method"], LLAMA, **said, **asked.drafter)
    return made


def _transfer(given: Any, deployment: Deployment) -> KVTransferConfig | None:
    theirs = given.kv_transfer_config and KVTransferConfig(**given.kv_transfer_config)
    if not deployment.turns_queries:
        ours = KVTransferConfig(kv_connector=CONNECTOR, kv_role="kv_both")
        return with_tiers(theirs or ours, given.kv_offloading_size)
    if theirs is not None and needs_keys(theirs.kv_connector):
        theirs.kv_connector_module_path = KEYED_CONNECTORS
    return theirs
