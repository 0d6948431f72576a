"""Beams of ``LLM.beam_search`` run at one scale for each prompt, as those of the server do.

vLLM searches for several prompts at once, and sends the beams of all of them with the same parameters. A step is
therefore taken once for the prompts of each scale.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from posenc_runtime.kv.admission import admit
from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.contract.active import deployment_of
from posenc_runtime.vllm_adapter.contract.names import ADMISSION_TOKENS


@dataclasses.dataclass
class _Search:
    """A search that runs.

    Attributes:
        max_tokens: new tokens of a beam at most.
        ended: ids of vLLM's records of the prompts that need no further step.
    """

    max_tokens: int
    ended: set[int] = dataclasses.field(default_factory=set)


_search: ContextVar[_Search] = ContextVar("search")


def keep_at_one_scale() -> None:
    """Wrap vLLM's search, where this process has ``LLM``. Engines with one scale, or none of ours, search as before.

    Raises:
        IncompatibleVllm: when vLLM lacks a name that we touch.
    """
    if "vllm.entrypoints.llm" not in sys.modules:
        return  # a server, which has its own search, or a command that only looks at a configuration
    releases.verify_offline()
    for (module, *path, name), wrap in WRAPPED.items():
        owner = functools.reduce(getattr, path, importlib.import_module(module))
        setattr(owner, name, wrap(inspect.unwrap(getattr(owner, name))))


def _searching(stock: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def beam_search(*args: Any, **kwargs: Any) -> Any:
        token = _search.set(_Search(signature.bind(*args, **kwargs).arguments["params"].max_tokens))
        try:
            return stock(*args, **kwargs)
        finally:
            _search.reset(token)

    return beam_search


def _stepping(stock: Callable[..., bool]) -> Callable[..., bool]:
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def step(*args: Any, **kwargs: Any) -> bool:
        asked = signature.bind(*args, **kwargs)
        llm, instances = asked.arguments["self"], asked.arguments["instances_batch"]
        deployment = deployment_of(llm.llm_engine.vllm_config)
        if deployment is None or len(deployment.scales) == 1:
            return stock(*args, **kwargs)
        search, groups = _search.get(), defaultdict[int, list[tuple[Any, int]]](list)
        for instance in instances:
            if not instance.beams or id(instance) in search.ended:
                continue
            prompt = instance.beams[0].orig_prompt
            num_tokens = len(prompt.get("decoder_prompt", prompt)["prompt_token_ids"])
            admission = admit(deployment, num_prompt_tokens=num_tokens, max_tokens=search.max_tokens, on_crossing="pin")
            groups[admission.scale_index].append((instance, admission.admission_tokens))
        params = asked.arguments["base_sampling_params"]
        for group in groups.values():
            told = copy.copy(params)
            told.extra_args = {**(told.extra_args or {}), ADMISSION_TOKENS: max(tokens for _, tokens in group)}
            asked.arguments |= {
                "instances_batch": [instance for instance, _ in group],
                "base_sampling_params": told,
            }
            if stock(*asked.args, **asked.kwargs):
                search.ended.update(id(instance) for instance, _ in group)
        return all(not instance.beams or id(instance) in search.ended for instance in instances)

    return step


def _building(stock: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Wrap what makes new parameters for beams with a grammar: they keep what the step's parameters tell the engine."""
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def build(*args: Any, **kwargs: Any) -> list[Any]:
        told = signature.bind(*args, **kwargs).arguments["base_params"].extra_args
        made = stock(*args, **kwargs)
        for entry in made:
            if entry is not None and told:
                entry[0].extra_args = {**(entry[0].extra_args or {}), **told}
        return made

    return build


_SEARCH = ("vllm.entrypoints.generate.beam_search.offline", "BeamSearchOfflineMixin")

# vLLM's methods that we wrap, by module, class and name, each with the function that wraps it.
WRAPPED: Mapping[tuple[str, str, str], Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    (*_SEARCH, "beam_search"): _searching,
    (*_SEARCH, "_beam_search_step"): _stepping,
    (*_SEARCH, "_build_beam_sampling_params"): _building,
}
