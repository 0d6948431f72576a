"""What ``posenc check`` says of lengths and scales is what the server serves, whatever a config.json has as lengths."""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import Any

import httpx
import pytest
import yaml

from tests.checkpoints import save_tiny
from tests.engine import forked
from tests.engine.running_server import running_server

PAIRS = range(16)
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0 + 0.4 * pair for pair in PAIRS]}
YARN = {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 64.0}
# What the configuration says of lengths and rotation; the trained length and the served one, tokens; the length of a
# request, and the scale that it needs.
CHECKPOINTS: dict[str, tuple[str, dict[str, Any], int, int, int, float]] = {
    "linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4}}, 256, 1024, 600, 4.0),
    "a factor alone": ("llama", {"rope_scaling": {"factor": 4.0}}, 256, 1024, 600, 4.0),
    "longrope": (
        "phi3",
        {"max_position_embeddings": 512, "original_max_position_embeddings": 64, "rope_scaling": LONGROPE},
        *(64, 512, 110, 8.0),
    ),
    "seq_length": ("llama", {"max_position_embeddings": 512, "seq_length": 128}, 128, 512, 300, 4.0),
    "model_max_length": ("cohere", {"max_position_embeddings": 64, "model_max_length": 256}, 256, 1024, 600, 4.0),
    "a length written as a float": ("llama", {"rope_scaling": YARN}, 256, 1024, 600, 4.0),
}


def checkpoint(name: str, folder: pathlib.Path) -> pathlib.Path:
    model_type, said, *_ = CHECKPOINTS[name]
    model = save_tiny(folder / "model", model_type, **({"hidden_size": 128} if model_type == "phi3" else {}))
    config = json.loads((model / "config.json").read_text())
    del config["rope_parameters"]
    (model / "config.json").write_text(json.dumps(config | {"rope_theta": 10000.0} | said))
    return model


def checked(folder: pathlib.Path, settings: dict[str, Any]) -> str:
    (folder / "checked.yaml").write_text(yaml.safe_dump(settings))
    command, log = ["check", str(folder / "checked.yaml")], folder / "checked.log"
    assert forked.status("server", command, environment=os.environ, log=log, timeout=240) == 0, log.read_text()
    return log.read_text()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_server_serves_the_lengths_and_scales_that_check_says(name: str, tmp_path: pathlib.Path) -> None:
    _, _, trained, longest, asked, scale = CHECKPOINTS[name]
    model = checkpoint(name, tmp_path)
    settings = {
        **{"model": str(model), "served_model_name": "tiny", "scaling": {"rope_type": "auto"}},
        "engine": {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**28},
    }
    said = checked(tmp_path, settings)
    assert re.search(rf"trained on {trained} tokens, serves {longest}\b", said), said
    with (
        running_server(tmp_path, settings, imported=True) as address,
        httpx.Client(base_url=address, timeout=120) as http,
    ):
        (model_card,) = http.get("/v1/models").json()["data"]
        served = http.get("/posenc/scales").json()
        body = {"model": "tiny", "prompt": [5] * (asked - 10), "max_tokens": 10, "ignore_eos": True}
        answer = http.post("/v1/completions", json=body).raise_for_status().json()
    assert (model_card["max_model_len"], served["max_model_len"]) == (longest, longest)
    assert served["original_max_position_embeddings"] == trained
    assert answer["kv_transfer_params"]["posenc"]["scale"] == scale
    assert answer["usage"]["total_tokens"] == asked
