"""An engine that also keeps what its layers have cached once its first batch is answered.

Blocks come first in what it keeps. Those of the first request are those after vLLM's null block, one after the other.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import torch
from vllm import LLM

from tests.engine.run_engine import main

_generate = LLM.generate


def _keeping(self: LLM, *arguments: Any, **named: Any) -> Any:
    outputs = _generate(self, *arguments, **named)
    layers = self.llm_engine.vllm_config.compilation_config.static_forward_context
    blocks = self.llm_engine.vllm_config.cache_config.num_gpu_blocks
    caches = {
        name: layer.kv_cache.movedim(layer.kv_cache.shape.index(blocks), 0).clone()
        for name, layer in layers.items()
        if hasattr(layer, "kv_cache")
    }
    torch.save(caches, pathlib.Path(json.loads(pathlib.Path(sys.argv[1]).read_text())["result"]).with_name("caches.pt"))
    return outputs


if __name__ == "__main__":
    LLM.generate = _keeping  # type: ignore[method-assign]
    main()
