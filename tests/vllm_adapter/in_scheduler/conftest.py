"""vLLM's configuration for a scheduler without an engine."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

from posenc_runtime import vllm_adapter
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import save_tiny


@pytest.fixture(scope="module")
def engine_config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    vllm_adapter.register()
    init_none_hash(sha256)
    deployment = Deployment(
        rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=256, max_model_len=512
    )
    arguments = engine_arguments(deployment, {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True})
    model = save_tiny(tmp_path_factory.mktemp("model") / "tiny")
    return AsyncEngineArgs(model=str(model), **arguments).create_engine_config()


@pytest.fixture
def vllm_config(engine_config: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a test changes of the scheduler's part is gone with it."""
    monkeypatch.setattr(releases, "verify", lambda: None)  # done in `engine_config`, and slow for every scheduler
    monkeypatch.setattr(engine_config, "scheduler_config", copy.copy(engine_config.scheduler_config))
    return engine_config
