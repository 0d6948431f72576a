"""vLLM's cache of rotary embeddings, one for each engine.

vLLM gives all models of a process that rotate alike the same embedding, and does not know of scales: an engine without
any, after one with them in the same process, would be rotated by the table of the other.
"""

from __future__ import annotations

from typing import Any

from vllm.config.vllm import get_current_vllm_config_or_none
from vllm.model_executor.layers import rotary_embedding


class RopeCache(dict[Any, Any]):
    """What ``get_rope`` looks into, and writes to, by the engine that is being built."""

    def __contains__(self, key: object) -> bool:
        return super().__contains__(_of_this_engine(key))

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(_of_this_engine(key))

    def __setitem__(self, key: Any, embedding: Any) -> None:
        super().__setitem__(_of_this_engine(key), embedding)


def substitute() -> None:
    """Let vLLM cache in this one."""
    rotary_embedding._ROPE_DICT = RopeCache()


def _of_this_engine(key: object) -> tuple[str, object]:
    vllm_config = get_current_vllm_config_or_none()
    return ("" if vllm_config is None else vllm_config.instance_id), key
