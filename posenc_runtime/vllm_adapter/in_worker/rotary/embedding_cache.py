"""vLLM's cache of rotary embeddings, one for each engine.

vLLM gives the same embedding to all models of a process with the same rotary parameters, and does not know of scales.
An engine without scales would get the stacked table of an earlier engine with scales in the same process.
"""

from __future__ import annotations

from typing import Any

from vllm.config.vllm import get_current_vllm_config_or_none
from vllm.model_executor.layers import rotary_embedding

from posenc_runtime.vllm_adapter.contract.active import engine_of


class RopeCache(dict[Any, Any]):
    """The dictionary that ``get_rope`` reads and writes, with the engine that is being built in each key."""

    def __contains__(self, key: object) -> bool:
        return super().__contains__(_of_this_engine(key))

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(_of_this_engine(key))

    def __setitem__(self, key: Any, embedding: Any) -> None:
        super().__setitem__(_of_this_engine(key), embedding)


def substitute() -> None:
    """Replace vLLM's cache by a ``RopeCache``."""
    rotary_embedding._ROPE_DICT = RopeCache()


def _of_this_engine(key: object) -> tuple[str, object]:
    return engine_of(get_current_vllm_config_or_none()), key
