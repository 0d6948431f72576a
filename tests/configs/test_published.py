"""What configurations say of their models follows from the models' published configurations."""

from __future__ import annotations

import json
import math
import pathlib
import re
from typing import Any

import pytest

# Importing vLLM warns; see there.
import tests.vllm_adapter.conftest  # noqa: F401
from server.deployment import shipped
from server.deployment.load import load
from server.start_up.planning import plan_settings
from tests import model_configs

PUBLISHED = {
    "deepseek-v31-yarn": model_configs.DEEPSEEK_V3,  # of V3.1, the keys that are read here are the same
    "gemma3-linear": model_configs.GEMMA_3_12B,
    "gpt-oss-yarn": model_configs.GPT_OSS,
    "llama3-dynamic": model_configs.LLAMA_3_8B,
    "llama31-llama3": model_configs.LLAMA_3_1_8B,
    "mistral-linear": model_configs.MISTRAL_7B,
    "phi4-longrope": model_configs.PHI_4_MINI,
    "qwen3-vl-yarn": model_configs.QWEN_3_VL_8B,
    "qwen3-yarn": model_configs.QWEN_3_8B,
    "qwen35-yarn": model_configs.QWEN_3_5_9B,
    "smollm2": model_configs.SMOLLM2_135M,
}
# "The longest request takes 6 GiB of KV cache: 12 of 24 layers, 8 KV heads of 64 values of 2 bytes."
CACHE = re.compile(
    r"The longest request takes (?P<gib>[\d.]+) GiB of KV cache( on each GPU)?: ((?P<cached>\d+) of )?(?P<layers>\d+) "
    r"layers(, (?P<heads>\d+) KV heads)? of (?P<values>\d+) values of (?P<bytes>\d) bytes\."
)
# "The other 12 layers see a window of 128 tokens. They hold 3 MiB for a request of any length."
BOUNDED = re.compile(r"The other (?P<layers>\d+) layers.*They hold (?P<mib>\d+) MiB for a request of any length\.")
GIB, MIB = 2**30, 2**20


def head_comment(name: str) -> str:
    """The lines of comment that a file begins with, as one line."""
    lines = shipped.path_of(name).read_text(encoding="utf-8").splitlines()
    return " ".join(
        line.removeprefix("# ") for line in lines[: next(i for i, line in enumerate(lines) if line[0] != "#")]
    )


def text_config(name: str) -> dict[str, Any]:
    published = PUBLISHED[name]
    found: dict[str, Any] = published.get("text_config", published)
    return found


def dtype_of(name: str) -> str:
    return str(load(shipped.path_of(name), environment={}).engine.get("dtype", "auto"))


def sees_all(config: dict[str, Any]) -> list[bool]:
    """For each layer, whether it caches the keys of a whole request."""
    number = config["num_hidden_layers"]
    if kinds := config.get("layer_types"):
        return [kind == "full_attention" for kind in kinds]
    pattern = config.get("sliding_window_pattern", 1)
    return [layer % pattern == 0 for layer in range(1, number + 1)]


def head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def values_of_a_token(config: dict[str, Any]) -> int:
    """How many numbers a layer caches for a token: keys and values, or the latent that stands for both."""
    if "kv_lora_rank" in config:
        return int(config["kv_lora_rank"] + config["qk_rope_head_dim"])
    return 2 * int(config["num_key_value_heads"]) * head_dim(config)


def state_bytes(config: dict[str, Any]) -> int:
    """Bytes of a Gated DeltaNet layer: a float32 matrix for each head, and bfloat16 inputs of a convolution."""
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys, values = config["linear_key_head_dim"], config["linear_value_head_dim"]
    channels = 2 * key_heads * keys + value_heads * values
    return int(4 * value_heads * keys * values + 2 * channels * (config["linear_conv_kernel_dim"] - 1))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_longest_request_takes_the_memory_that_its_file_states(name: str) -> None:
    stated = CACHE.search(head_comment(name))
    assert stated is not None
    config = text_config(name)
    num_cached = sum(sees_all(config))
    max_model_len = load(shipped.path_of(name), environment={}).max_model_len
    assert max_model_len is not None
    assert int(stated["bytes"]) == {"float32": 4}.get(dtype_of(name), 2)
    num_bytes = max_model_len * num_cached * values_of_a_token(config) * int(stated["bytes"])
    digits = len(stated["gib"].partition(".")[2])
    assert stated["gib"] == f"{num_bytes / GIB:.{digits}f}"

    assert int(stated["layers"]) == config["num_hidden_layers"]
    assert int(stated["cached"] or stated["layers"]) == num_cached
    kinds = 1 if stated["heads"] is None else 2
    assert kinds * int(stated["heads"] or 1) * int(stated["values"]) == values_of_a_token(config)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if not all(sees_all(text_config(name)))])
def test_layers_that_hold_a_bounded_part_take_the_memory_that_their_file_states(name: str) -> None:
    stated = BOUNDED.search(head_comment(name))
    assert stated is not None
    config = text_config(name)
    num_others = config["num_hidden_layers"] - sum(sees_all(config))
    if "linear_num_key_heads" in config:
        each = state_bytes(config)
    else:
        each = config["sliding_window"] * values_of_a_token(config) * 2
        assert f"a window of {config['sliding_window']:,} tokens" in head_comment(name)
    assert (int(stated["layers"]), int(stated["mib"])) == (num_others, round(num_others * each / MIB))


def test_every_file_that_states_gib_is_compared_with_a_published_configuration() -> None:
    assert {name for name in shipped.names() if "GiB" in head_comment(name)} == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_file_is_served_with_the_published_checkpoint(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    settings = load(shipped.path_of(name), environment={})
    settings.model = str(tmp_path)
    plan = plan_settings(settings)
    deployment, checkpoint = plan.deployment, plan.checkpoint
    assert checkpoint is not None
    assert deployment.rope_type == settings.scaling.rope_type
    own = checkpoint.parameters if checkpoint.rope_type == deployment.rope_type else {}
    assert dict(deployment.parameters) == {**own, **settings.scaling.parameters}
    assert deployment.original_max_position_embeddings <= (checkpoint.max_position_embeddings or math.inf)
