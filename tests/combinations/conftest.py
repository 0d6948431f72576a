from __future__ import annotations

# The tables need vLLM; see there why it is imported before.
import tests.vllm_adapter.conftest  # noqa: F401
