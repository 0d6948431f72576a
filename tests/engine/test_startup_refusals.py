"""What cannot be served right is refused before the engine starts, by name."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
import yaml

from tests.checkpoints import save_tiny
from tests.engine import forked


@pytest.mark.parametrize(
    ("checkpoint", "settings", "rule"),
    [
        pytest.param(
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
            {},
            "rope_type yarn is for checkpoints whose own rope_type is default or yarn, but this one's is linear",
            id="scaled-checkpoint",
        ),
        pytest.param(
            {},
            {"scaling": {"rope_type": "yarn", "scales": [1, 2], "original_max_position_embeddings": 512}},
            "scaling.original_max_position_embeddings: must not exceed the checkpoint's trained length 256",
            id="trained-length-beyond-the-checkpoints",
        ),
        pytest.param(
            {},
            {"engine": {"speculative_config": {"method": "medusa", "num_speculative_tokens": 2}}},
            "speculative_config.method must be one of ngram, draft_model, eagle, eagle3, mtp, got medusa",
            id="speculative-decoding",
            marks=pytest.mark.promise("refusals"),
        ),
        pytest.param(
            {},
            {"engine": {"gpu_memory_utilization": 2.0}},
            "engine.gpu_memory_utilization: must be less than or equal to 1, got 2.0",
            id="out-of-vllms-range",
        ),
        pytest.param(
            {}, {"engine": {"max_num_seq": 4}}, "engine.max_num_seq: is not an argument of vLLM", id="engine-argument"
        ),
    ],
)
def test_serving_is_refused_with_the_key_and_the_reason(
    checkpoint: dict[str, Any], settings: dict[str, Any], rule: str, tmp_path: pathlib.Path
) -> None:
    model = save_tiny(tmp_path / "model", **checkpoint)
    file = tmp_path / "deployment.yaml"
    scaling = {"scaling": {"rope_type": "yarn", "scales": [1, 2, 4]}}
    # A size of the cache, so that nothing depends on the memory that is free here.
    engine = {"engine": {"kv_cache_memory_bytes": 2**28} | settings.get("engine", {})}
    file.write_text(yaml.safe_dump({"model": str(model)} | scaling | settings | engine))
    log = tmp_path / "log"
    status = forked.status("server", ["serve", "--config", str(file)], environment=os.environ, log=log, timeout=240)
    said = log.read_text()
    assert status == 2, said
    assert rule in said
    assert "Traceback" not in said
