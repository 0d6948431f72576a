"""Computes how many requests of a length run at once on a kind of GPU, and how many GPUs they need."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from posenc_runtime.kv.admission import admit
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.checkpoint.sizing.cache import LayerCache, layer_caches, number_bytes, used_share
from posenc_runtime.vllm_adapter.checkpoint.sizing.weights import Weights, weights_of
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.deployment.gpus import bytes_of
from server.deployment.settings import Settings

_TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)
_BLOCK_TOKENS = 16  # vLLM's default


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A replica of some GPUs.

    Attributes:
        tensor_parallel_size: GPUs of a replica.
        caches: what the layers keep on each of them.
        weight_bytes: on each of them.
        cache_bytes: left for the KV cache on each of them; negative where the weights do not fit.
        request_bytes: of one request on each of them.
        requests: how many requests fit at once.
        replicas: how many replicas the wanted requests need; None where not even one request fits.
    """

    tensor_parallel_size: int
    caches: tuple[LayerCache, ...]
    weight_bytes: int
    cache_bytes: int
    request_bytes: int
    requests: int
    replicas: int | None

    @property
    def gpus(self) -> int | None:
        """GPUs in all."""
        return None if self.replicas is None else self.replicas * self.tensor_parallel_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """What a deployment needs.

    Attributes:
        gpu: its name, or its memory.
        gpu_bytes: its memory.
        gpu_memory_utilization: the share of it that vLLM uses.
        context: tokens of each request, prompt and answer.
        concurrency: requests that run at once.
        scale: the scale that a request of this length ends at.
        weights: of the whole model.
        options: by the number of GPUs.
    """

    gpu: str
    gpu_bytes: int
    gpu_memory_utilization: float
    context: int
    concurrency: int
    scale: str
    weights: Weights
    options: tuple[Option, ...]

    @property
    def best(self) -> Option | None:
        """The option with the fewest GPUs in all, and of these the one with the fewest a replica; None if none fits."""
        fitting = [option for option in self.options if option.gpus is not None]
        return min(fitting, key=lambda option: (option.gpus, option.tensor_parallel_size), default=None)


def compute_fit(
    settings: Settings,
    *,
    gpu: str,
    gpu_bytes: int,
    context: int | None,
    concurrency: int,
    weights: str | None,
) -> Size:
    """Compute what fits, for a deployment that is checked as ``posenc check`` does.

    Args:
        gpu: its name, for the report.
        context: tokens of each request; the longest that the deployment serves when left out.
        weights: memory of the weights, with a unit; measured or estimated when left out.

    Raises:
        Refused: when a setting or an argument is refused, or the cache of the model's layers is not known.
    """
    from server.deployment.checkpoint import look
    from server.start_up.planning import plan_settings

    plan = plan_settings(settings)
    deployment, checkpoint = plan.deployment, plan.checkpoint
    assert checkpoint is not None  # it is read, or refused
    model_bytes = number_bytes(settings.engine)
    if weights is None:
        known = weights_of(look(settings).place, checkpoint.text_config, model_bytes)
    elif (given := bytes_of(weights)) is not None:
        known = Weights(given, "as given")
    else:
        raise SettingRefused(f"--weights: must be a number with MiB, GiB or GB, such as 140GB, got {weights!r}")
    return size(
        settings,
        deployment,
        checkpoint,
        known,
        gpu=gpu,
        gpu_bytes=gpu_bytes,
        context=deployment.max_model_len if context is None else context,
        concurrency=concurrency,
        model_bytes=model_bytes,
        gpu_memory_utilization=used_share(settings.engine),
    )


def size(
    settings: Settings,
    deployment: Deployment,
    checkpoint: Checkpoint,
    weights: Weights,
    *,
    gpu: str,
    gpu_bytes: int,
    context: int,
    concurrency: int,
    model_bytes: int,
    gpu_memory_utilization: float,
) -> Size:
    """Compute what fits.

    Args:
        model_bytes: bytes of a number of the model.
        gpu_memory_utilization: vLLM's argument, given or by default.

    Raises:
        SettingRefused: when requests of this length are not served.
        Unsupported: when the cache of the model's layers is not known.
    """
    if context > deployment.max_model_len:
        raise SettingRefused(
            f"--context: must be at most {deployment.max_model_len} tokens, which the deployment serves, got "
            f"{context}: raise max_model_len"
        )
    scale = deployment.scale_set.label(admit(deployment, num_prompt_tokens=context, max_tokens=0).scale_index)
    engine = settings.engine
    given = engine.get("tensor_parallel_size")
    tokens = math.ceil(context / _BLOCK_TOKENS) * _BLOCK_TOKENS
    options = []
    for number in (given,) if given is not None else _sizes(checkpoint.text_config):
        caches = layer_caches(
            checkpoint.text_config,
            checkpoint.architecture.partition(", ")[0],
            model_bytes=model_bytes,
            kv_cache_dtype=str(engine.get("kv_cache_dtype", "auto")),
            tensor_parallel_size=number,
        )
        request_bytes = sum(each.request_bytes(tokens) for each in caches)
        weight_bytes = math.ceil((weights.num_bytes or 0) / number)
        table = deployment.scale_set.num_rows * (checkpoint.spec.rotary_dim if checkpoint.spec else 0) * model_bytes
        left = int(gpu_bytes * gpu_memory_utilization) - weight_bytes - table
        requests = max(0, left // request_bytes) if request_bytes else concurrency
        options.append(
            Option(
                tensor_parallel_size=number,
                caches=tuple(caches),
                weight_bytes=weight_bytes,
                cache_bytes=left,
                request_bytes=request_bytes,
                requests=requests,
                replicas=math.ceil(concurrency / requests) if requests else None,
            )
        )
    return Size(
        gpu=gpu,
        gpu_bytes=gpu_bytes,
        gpu_memory_utilization=gpu_memory_utilization,
        context=context,
        concurrency=concurrency,
        scale=scale,
        weights=weights,
        options=tuple(options),
    )


def _sizes(text_config: Any) -> list[int]:
    """Numbers of GPUs that the model's heads can be split over."""
    heads = int(getattr(text_config, "num_attention_heads", 0) or 1)
    return [number for number in _TENSOR_PARALLEL_SIZES if heads % number == 0]
