"""Checks of requests, and their default ``max_tokens``, in vLLM's API server. ``LLM`` has no such hooks."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from posenc_runtime.kv.admission import choose_on_crossing
from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.kv.regime import refuse_other_marks
from posenc_runtime.vllm_adapter.contract.names import ON_CROSSING, PROMPT_ALONE

# A key that begins so is meant for us, even if misspelled; vLLM passes on or ignores keys that it does not know.
_OURS = "posenc"


def set_default_max_tokens(state: Any, deployment: Deployment) -> None:
    """Where requests are pinned to one of several scales, give a request without ``max_tokens`` the headroom.

    vLLM would give a chat all that is left of ``max_model_len``, and every short chat would be admitted at the largest
    scale. vLLM's ``override_generation_config`` would also cap requests that do set ``max_tokens``. Decision 8.

    Args:
        state: ``app.state`` after ``init_app_state``.
    """
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    headroom_tokens = min(deployment.headroom_tokens, deployment.max_model_len)
    # A completion's missing value is filled in from the field's default while the body is parsed.
    CompletionRequest.model_fields["max_tokens"].default = headroom_tokens
    for name in (
        "openai_serving_chat",
        "openai_serving_chat_batch",
        "openai_serving_completion",
        "openai_serving_responses",
    ):
        serving = getattr(state, name, None)
        if serving is not None:
            serving.default_sampling_params = {**serving.default_sampling_params, "max_tokens": headroom_tokens}


def check_requests(deployment: Deployment) -> None:
    """Refuse a ``vllm_xargs.posenc_on_crossing`` that the deployment does not offer, and misspelled or misplaced keys.

    vLLM answers with status 400 when a check raises. A request that asks for ``pin`` without ``max_tokens`` gets the
    headroom, as in ``set_default_max_tokens``.
    """
    for (module, request_class, name), check in WRAPPED.items():
        owner = getattr(importlib.import_module(module), request_class)
        setattr(owner, name, check(inspect.unwrap(getattr(owner, name)), deployment))


def _checked(to_sampling_params: Callable[..., Any], deployment: Deployment) -> Callable[..., Any]:
    signature = inspect.signature(to_sampling_params)
    _, length, *_ = signature.parameters  # its name differs between the classes of requests

    @functools.wraps(to_sampling_params)
    def checked(*args: Any, **kwargs: Any) -> Any:
        asked = signature.bind(*args, **kwargs)
        request = asked.args[0]
        wish, chosen = _check(request, deployment)
        is_pinned = wish and chosen == "pin" and len(deployment.scales) > 1
        if is_pinned and not _says_how_long(request):
            asked.arguments[length] = min(asked.arguments[length], deployment.headroom_tokens)
        params = to_sampling_params(*asked.args, **asked.kwargs)
        if getattr(request, "echo", False) and getattr(request, "max_tokens", None) == 0:
            params.extra_args = {**(params.extra_args or {}), PROMPT_ALONE: True}
        return params

    return checked


def _checked_beams(to_beam_search_params: Callable[..., Any], deployment: Deployment) -> Callable[..., Any]:
    """Check a request for beams. Where there are several scales, all beams of an answer run at one of them, pinned."""
    signature = inspect.signature(to_beam_search_params)
    _, length, *_ = signature.parameters

    @functools.wraps(to_beam_search_params)
    def checked(*args: Any, **kwargs: Any) -> Any:
        asked = signature.bind(*args, **kwargs)
        request = asked.args[0]
        check_pinned(request, deployment, "use_beam_search is true")
        if len(deployment.scales) > 1 and not _says_how_long(request):
            asked.arguments[length] = min(asked.arguments[length], deployment.headroom_tokens)
        return to_beam_search_params(*asked.args, **asked.kwargs)

    return checked


def _says_how_long(request: Any) -> bool:
    return any(vars(request).get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"))


def check_pinned(request: Any, deployment: Deployment, where: str) -> None:
    """Check what a request asks of us, where vLLM makes several requests of it: they run at one scale, and never cross.

    Args:
        where: this is so, for the message.

    Raises:
        ValueError: as for any other request, and when it asks to cross.
    """
    wish, chosen = _check(request, deployment)
    if wish and chosen != "pin":
        raise ValueError(
            f"vllm_xargs.{ON_CROSSING} must be pin where {where}, got {wish}: all parts of the answer run at one "
            "scale, and none crosses. Leave it out"
        )


def _check(request: Any, deployment: Deployment) -> tuple[Any, OnCrossing]:
    """Check what a request asks of us.

    Returns:
        The ``on_crossing`` that it asks for, None if it asks for none, and the one that holds.

    Raises:
        ValueError: when a key is misspelled or misplaced, a salt has another scale's mark, or the deployment does not
            offer the wish.
    """
    _refuse_unknown_keys(request)
    if len(deployment.scales) > 1 and (salt := getattr(request, "cache_salt", None)):
        refuse_other_marks(deployment, salt)
    wish = _xargs(request).get(ON_CROSSING)
    try:
        return wish, choose_on_crossing(deployment, wish)
    except ValueError as error:
        raise ValueError(f"vllm_xargs.{ON_CROSSING}: {error}") from None


def _xargs(request: Any) -> Mapping[str, Any]:
    """Further arguments of a request; where a route of vLLM has none, they are not checked by vLLM."""
    found = getattr(request, "vllm_xargs", None)
    return found if isinstance(found, Mapping) else {}


_CHAT = ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest")
_COMPLETION = ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest")
_RESPONSES = ("vllm.entrypoints.openai.responses.protocol", "ResponsesRequest")

# vLLM's methods that we wrap, by module, class and name, each with the function that wraps it.
WRAPPED: Mapping[tuple[str, str, str], Callable[[Callable[..., Any], Deployment], Callable[..., Any]]] = {
    (*_CHAT, "to_sampling_params"): _checked,
    (*_COMPLETION, "to_sampling_params"): _checked,
    (*_RESPONSES, "to_sampling_params"): _checked,
    (*_CHAT, "to_beam_search_params"): _checked_beams,
    (*_COMPLETION, "to_beam_search_params"): _checked_beams,
}


def _refuse_unknown_keys(request: Any) -> None:
    """Refuse keys of a request that are meant for us or for vLLM and are misspelled or misplaced.

    Raises:
        ValueError: naming the key and where the known one belongs.
    """
    for key in _xargs(request):
        if key.lower().startswith(_OURS) and key != ON_CROSSING:
            raise ValueError(
                f"{ON_CROSSING} is the only key of vllm_xargs that starts with {_OURS}, got {key!r}: check the name"
            )
        if key == "kv_transfer_params":
            raise ValueError("kv_transfer_params belongs beside vllm_xargs, got it inside: vLLM would end the request")
    beside = dict(request.model_extra or {})
    # Client libraries name an argument for further keys so, and send only its keys. Whoever writes the name itself into
    # a body means vllm_xargs.
    for place in ("extra_body", "extra_args"):
        if isinstance(beside.get(place), Mapping):
            beside |= beside[place]
    for key in beside:
        if key.lower().startswith(_OURS):
            raise ValueError(
                f"{ON_CROSSING} belongs in vllm_xargs, and no other key may start with {_OURS}, got {key!r} beside it: "
                f'write "vllm_xargs": {{"{ON_CROSSING}": ...}}'
            )
