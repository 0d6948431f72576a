"""An engine whose prefix cache is not kept apart by scale: the control that shows what the salt is for."""

from __future__ import annotations

import json
import pathlib
import sys

from posenc_runtime.vllm_adapter import scheduler_half
from tests.engine.run_engine import run_job

if __name__ == "__main__":
    scheduler_half.salted = lambda cache_salt, regime_name: cache_salt  # type: ignore[assignment]
    run_job(json.loads(pathlib.Path(sys.argv[1]).read_text()))
