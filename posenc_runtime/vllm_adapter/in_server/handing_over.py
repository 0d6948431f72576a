"""Lets a server sign the scale of the prompts that it prefills for others, and check that of prompts that it decodes.

vLLM's connector says in an answer's ``kv_transfer_params`` which blocks have the keys, and a router passes that on in
the next request. Both pass here: in the process with the HTTP routes, where a refusal is status 400. The engine then
believes what this process writes into ``extra_args``, under a name that clients may not use. Decision 78.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from posenc_runtime.kv.admission import admit
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.handover import scale_of, sign
from posenc_runtime.vllm_adapter.contract.names import ADMISSION_TOKENS, ON_CROSSING, PREFILLED_SCALE
from posenc_runtime.vllm_adapter.refusals.tiers import hands_over, tiers_of
from posenc_runtime.vllm_adapter.settings.transfer_key import transfer_key

_PARAMS = "kv_transfer_params"
_LEASE_SECONDS = 30  # for which NIXL keeps blocks, where kv_lease_duration does not say it


def hand_over(engine: Any, deployment: Deployment) -> None:
    """Sign and check what passes.

    Where queries turn, keys have no scale: engines compare in their handshake all that the keys depend on.

    Args:
        engine: vLLM's client of a running engine; its ``generate`` is wrapped. vLLM would tell the engine the
            parameters of a refused request, so that it has the other server free the blocks. Nobody has checked them,
            so the engine is told nothing, and the other server frees the blocks when their time is over.
    """
    transfer = engine.vllm_config.kv_transfer_config
    if deployment.turns_queries or not hands_over(transfer):
        return
    seconds = next(
        (tier.get("kv_connector_extra_config") or {}).get("kv_lease_duration", _LEASE_SECONDS)
        for tier in tiers_of(transfer)
    )
    engine.generate = handing_over(engine.generate, deployment, transfer_key(), int(seconds))
    engine.notify_kv_transfer_request_rejected = _tell_nobody


async def _tell_nobody(*_: Any, **__: Any) -> None:
    pass


def handing_over(
    stock: Callable[..., AsyncIterator[Any]], deployment: Deployment, key: bytes, seconds: int
) -> Callable[..., Any]:
    """Wrap ``generate`` of vLLM's client.

    What it gives raises ``ValueError``, which is answered with status 400, where a request brings keys whose scale no
    server has signed, cannot begin at that scale, or brings them once more.

    Args:
        seconds: for which a prefilling server keeps blocks for another one.
    """
    taken: dict[tuple[str, str], float] = {}  # engine and request that prefilled: until when it is not taken again

    def check(asked: Mapping[str, Any], prompt: Any, params: Any, contents: list[str]) -> float:
        """The scale of the keys that a request brings."""
        now, tokens = time.time(), _tokens(prompt)
        scale = scale_of(key, deployment, asked, now=now, prompt_token_ids=tokens, contents=contents)
        admit(
            deployment,
            num_prompt_tokens=len(tokens),
            max_tokens=params.max_tokens,
            on_crossing=(params.extra_args or {}).get(ON_CROSSING),
            prefilled_scale=scale,
        )
        for known in [name for name, until in taken.items() if until < now]:
            del taken[known]
        name = (asked["remote_engine_id"], asked["remote_request_id"])
        if name in taken:
            raise ValueError(
                f"{_PARAMS} must be used once, but this server has taken these keys before: let the prompt be "
                "prefilled again"
            )
        taken[name] = asked["posenc"]["expires"]
        return scale

    @functools.wraps(stock)
    async def generate(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        extra = getattr(sampling_params, "extra_args", None) or {}
        asked = extra.get(_PARAMS) or {}
        _refuse(extra, asked, prompt, sampling_params)
        if not (asked.get("do_remote_prefill") or asked.get("do_remote_decode")):
            async for output in stock(prompt, sampling_params, *args, **kwargs):
                yield output
            return
        contents = _contents(prompt, kwargs.get("lora_request"))
        if asked.get("do_remote_prefill"):
            scale = check(asked, prompt, sampling_params, contents)
            sampling_params = copy.copy(sampling_params)
            sampling_params.extra_args = {**extra, PREFILLED_SCALE: scale}
        async for output in stock(prompt, sampling_params, *args, **kwargs):
            said = output.kv_transfer_params or {}
            if output.finished and said.get("remote_block_ids"):
                report, expires = said["posenc"], int(time.time()) + seconds
                signature = sign(
                    key,
                    deployment,
                    report["scale"],
                    expires=expires,
                    prompt_token_ids=_tokens(prompt),
                    contents=contents,
                    place=said,
                )
                output.kv_transfer_params = {
                    **said,
                    "posenc": {**report, "expires": expires, "signature": signature},
                }
            yield output

    return generate


def _refuse(extra: Mapping[str, Any], asked: Any, prompt: Any, params: Any) -> None:
    """Check what a request asks of a transfer, whoever has signed it.

    Raises:
        ValueError: when it writes a name of ours, or keys and prompt would not be each other's.
    """
    if PREFILLED_SCALE in extra:
        raise ValueError(f"extra_args.{PREFILLED_SCALE} must be left out: only the server sets it")
    if not isinstance(asked, Mapping):
        raise ValueError(f"{_PARAMS} must be an object, got {type(asked).__name__}")
    takes, gives = bool(asked.get("do_remote_prefill")), bool(asked.get("do_remote_decode"))
    if not (takes or gives):
        return
    if takes and gives:
        raise ValueError(f"{_PARAMS} must have one of do_remote_prefill and do_remote_decode, got both")
    if ADMISSION_TOKENS in extra or params.n != 1:
        raise ValueError(f"{_PARAMS} must be left out where an answer is made of several requests, such as n above 1")
    if gives and params.max_tokens != 1:
        raise ValueError(
            f"max_tokens must be 1 where {_PARAMS}.do_remote_decode is true, got {params.max_tokens}: the blocks that "
            "are handed over have the keys of the prompt alone"
        )
    if isinstance(prompt, Mapping) and "prompt_embeds" in prompt.get("decoder_prompt", prompt):
        raise ValueError(f"{_PARAMS} must be left out for prompts of embeddings: only tokens are signed")


def _tokens(prompt: Any) -> Sequence[int]:
    prompt = prompt.get("decoder_prompt", prompt)
    tokens: Sequence[int] = prompt.get("prompt_token_ids") or []
    return tokens


def _contents(prompt: Any, adapter: Any) -> list[str]:
    """Names of what a prompt has besides tokens: its images, and the adapter that computes its keys."""
    hashes: Mapping[str, Sequence[str]] = prompt.get("mm_hashes") or {}
    images = [f"{kind}:{each}" for kind, of_kind in sorted(hashes.items()) for each in of_kind]
    return [*images, f"adapter:{adapter.lora_name}"] if adapter is not None else images
