"""An engine whose requests have the adapter that ``ADAPTER`` names."""

from __future__ import annotations

import os
from typing import Any

from vllm import LLM
from vllm.lora.request import LoRARequest

from tests.engine.run_engine import main

_generate = LLM.generate


def _with_adapter(self: LLM, prompts: Any, *arguments: Any, **named: Any) -> Any:
    adapter = LoRARequest("adapter", 1, os.environ["ADAPTER"])
    return _generate(self, prompts, *arguments, lora_request=adapter, **named)


if __name__ == "__main__":
    LLM.generate = _with_adapter  # type: ignore[method-assign]
    main()
