from __future__ import annotations

# The commands import vLLM as they need it; see there why it is imported before.
import tests.vllm_adapter.conftest  # noqa: F401
