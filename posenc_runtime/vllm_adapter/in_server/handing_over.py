"""Lets a server sign the scale of the prompts that it prefills for others, and check that of prompts that it decodes.

vLLM's connector says in an answer's ``kv_transfer_params`` which blocks have the keys, and a router passes that on in
the next request. Both pass here: in the process with the HTTP routes, where a refusal is status 400. The engine then
believes what this process writes into ``extra_args``, under a name that clients may not use. Decision 78.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from posenc_runtime.kv.admission import admit
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.handover import scale_of, sign
from posenc_runtime.vllm_adapter.contract.names import ADMISSION_TOKENS, ON_CROSSING, PREFILLED_SCALE
from posenc_runtime.vllm_adapter.refusals.tiers import hands_over
from posenc_runtime.vllm_adapter.settings.transfer_key import transfer_key

_PARAMS = "kv_transfer_params"


def hand_over(engine: Any, deployment: Deployment) -> None:
    """Sign and check what passes.

    Where queries turn, keys have no scale: engines compare in their handshake all that the keys depend on.

    Args:
        engine: vLLM's client of a running engine; its ``generate`` is wrapped.
    """
    if not deployment.turns_queries and hands_over(engine.vllm_config.kv_transfer_config):
        engine.generate = handing_over(engine.generate, deployment, transfer_key())


def handing_over(stock: Callable[..., AsyncIterator[Any]], deployment: Deployment, key: bytes) -> Callable[..., Any]:
    """Wrap ``generate`` of vLLM's client.

    What it gives raises ``ValueError``, which is answered with status 400, where a request brings keys whose scale no
    server has signed, or cannot begin at that scale.
    """

    @functools.wraps(stock)
    async def generate(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        extra = getattr(sampling_params, "extra_args", None) or {}
        asked: Mapping[str, Any] = extra.get(_PARAMS) or {}
        if not (asked.get("do_remote_prefill") or asked.get("do_remote_decode")):
            async for output in stock(prompt, sampling_params, *args, **kwargs):
                yield output
            return
        tokens, contents = _tokens(prompt), _contents(prompt, kwargs.get("lora_request"))
        if asked.get("do_remote_prefill"):
            if ADMISSION_TOKENS in extra:
                raise ValueError(f"{_PARAMS} must be left out where an answer is made of several requests")
            scale = scale_of(key, deployment, asked, prompt_token_ids=tokens, contents=contents)
            admit(
                deployment,
                num_prompt_tokens=len(tokens),
                max_tokens=sampling_params.max_tokens,
                on_crossing=extra.get(ON_CROSSING),
                prefilled_scale=scale,
            )
            sampling_params = copy.copy(sampling_params)
            sampling_params.extra_args = {**extra, PREFILLED_SCALE: scale}
        async for output in stock(prompt, sampling_params, *args, **kwargs):
            said = output.kv_transfer_params or {}
            if output.finished and said.get("remote_block_ids"):
                report = said["posenc"]
                signature = sign(
                    key, deployment, report["scale"], prompt_token_ids=tokens, contents=contents, place=said
                )
                output.kv_transfer_params = {**said, "posenc": {**report, "signature": signature}}
            yield output

    return generate


def _tokens(prompt: Any) -> Sequence[int]:
    prompt = prompt.get("decoder_prompt", prompt)
    tokens: Sequence[int] = prompt.get("prompt_token_ids") or []
    return tokens


def _contents(prompt: Any, adapter: Any) -> list[str]:
    """Names of what a prompt has besides tokens: its images, and the adapter that computes its keys."""
    hashes: Mapping[str, Sequence[str]] = prompt.get("mm_hashes") or {}
    images = [f"{kind}:{each}" for kind, of_kind in sorted(hashes.items()) for each in of_kind]
    return [*images, f"adapter:{adapter.lora_name}"] if adapter is not None else images
