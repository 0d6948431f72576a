"""An engine whose prefix cache is not kept apart by scale: the control that shows what the salt is for."""

from __future__ import annotations

from posenc_runtime.vllm_adapter.in_scheduler import scheduler_half
from tests.engine.run_engine import main

if __name__ == "__main__":
    scheduler_half.salted = lambda cache_salt, regime_name: cache_salt  # type: ignore[assignment]
    main()
