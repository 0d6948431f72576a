"""An engine whose requests have priorities: the later ones of a batch come first."""

from __future__ import annotations

from typing import Any

from vllm import LLM

from tests.engine.run_engine import main

_generate = LLM.generate


def _with_priorities(self: LLM, prompts: Any, *arguments: Any, **named: Any) -> Any:
    return _generate(self, prompts, *arguments, priority=[-number for number in range(len(prompts))], **named)


if __name__ == "__main__":
    LLM.generate = _with_priorities  # type: ignore[method-assign]
    main()
