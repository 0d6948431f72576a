"""What `posenc size` says agrees with the arithmetic of published configurations, and with sums made by hand."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from transformers import PreTrainedConfig
from typer.testing import CliRunner

# Importing vLLM warns; see there.
import tests.vllm_adapter.conftest  # noqa: F401
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_checkpoint
from posenc_runtime.vllm_adapter.checkpoint.sizing.cache import LayerCache, layer_caches, value_bytes
from posenc_runtime.vllm_adapter.checkpoint.sizing.layer_kinds import Kept, kept_by_layer
from posenc_runtime.vllm_adapter.checkpoint.sizing.weights import Weights, estimate_weights, of_files
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.cli import app
from server.deployment import gpus, shipped
from server.deployment.load import load
from server.sizing.fit import Size, size
from server.start_up.planning import plan_settings
from tests import model_configs
from tests.configs.test_published import CACHE, GIB, PUBLISHED, head_comment, sees_all, state_bytes, text_config

DEMO = pathlib.Path(__file__).resolve().parents[3] / "posenc_runtime/zoo/demo"


def caches_of(
    published: dict[str, Any],
    folder: pathlib.Path,
    *,
    model_bytes: int = 2,
    tensor_parallel_size: int = 1,
    kv_cache_dtype: str = "auto",
) -> dict[str, LayerCache]:
    (folder / "config.json").write_text(json.dumps(published))
    checkpoint = read_checkpoint(str(folder), {})
    found = layer_caches(
        checkpoint.text_config,
        checkpoint.architecture,
        model_bytes=model_bytes,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tensor_parallel_size,
    )
    return {each.kind: each for each in found}


def layers(**keys: Any) -> list[Kept]:
    return kept_by_layer(PreTrainedConfig(**keys))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_longest_request_takes_what_the_deployment_states(name: str, tmp_path: pathlib.Path) -> None:
    stated = CACHE.search(head_comment(name))
    longest = load(shipped.path_of(name), environment={}).max_model_len
    assert stated is not None and longest is not None
    caches = caches_of(PUBLISHED[name], tmp_path, model_bytes=int(stated["bytes"]))
    of_all = [each for each in caches.values() if (each.most_tokens or longest) >= longest and each.token_bytes]
    taken = sum(each.request_bytes(longest) for each in of_all) / GIB
    assert f"{taken:.{len(stated['gib'].partition('.')[2])}f}" == stated["gib"]
    config = text_config(name)
    assert sum(each.layers for each in of_all) == sum(sees_all(config))
    assert sum(each.layers for each in caches.values()) == config["num_hidden_layers"]
    others = [each for each in caches.values() if each not in of_all]
    if "linear_num_key_heads" in config:
        assert [each.state_bytes for each in others] == [state_bytes(config)]
    else:
        assert [each.most_tokens for each in others] == [config["sliding_window"] for _ in others]


def test_heads_are_split_over_gpus_and_never_below_one_on_each(tmp_path: pathlib.Path) -> None:
    of_a_token = [
        caches_of(model_configs.QWEN_3_8B, tmp_path, tensor_parallel_size=gpus)["full attention"].token_bytes
        for gpus in (1, 2, 8, 16)
    ]
    assert of_a_token == [8 * 512, 4 * 512, 512, 512]


def test_latents_are_whole_on_each_gpu(tmp_path: pathlib.Path) -> None:
    found = {
        gpus: caches_of(model_configs.DEEPSEEK_V3, tmp_path, tensor_parallel_size=gpus)["latents of MLA"].token_bytes
        for gpus in (1, 8)
    }
    assert found == {1: 1152, 8: 1152}


def test_layers_of_two_widths_are_told_apart(tmp_path: pathlib.Path) -> None:
    caches = caches_of(model_configs.GEMMA_4, tmp_path)
    assert caches["full attention"].token_bytes == 2 * 2 * 512 * 2
    assert (caches["sliding window"].token_bytes, caches["sliding window"].most_tokens) == (2 * 2 * 256 * 2, 512)


def test_a_window_keeps_its_tokens_and_no_more() -> None:
    window = LayerCache("sliding window", 10, token_bytes=100, most_tokens=512)
    assert [window.request_bytes(tokens) for tokens in (100, 512, 100_000)] == [100_000, 512_000, 512_000]


def test_a_cache_in_eight_bits_takes_half() -> None:
    assert [value_bytes(dtype, 2) for dtype in ("auto", "bfloat16", "fp8", "fp8_e4m3")] == [2, 2, 1, 1]
    with pytest.raises(Unsupported, match=r"engine\.kv_cache_dtype"):
        value_bytes("of the future", 2)


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({}, [Kept.ALL] * 4),
        ({"sliding_window": 8}, [Kept.WINDOW] * 4),
        ({"sliding_window": 8, "use_sliding_window": False}, [Kept.ALL] * 4),
        ({"sliding_window": 8, "sliding_window_pattern": 2}, [Kept.WINDOW, Kept.ALL] * 2),
        ({"layer_types": ["conv", "full_attention"] * 2}, [Kept.STATE, Kept.ALL] * 2),
        (
            {"layers_block_type": ["mamba", "mlp", "attention", "moe"]},
            [Kept.STATE, Kept.NOTHING, Kept.ALL, Kept.NOTHING],
        ),
        ({"layers_block_type": ["mamba", "hybrid"] * 2}, [Kept.STATE, Kept.ALL_AND_STATE] * 2),
        ({"mamba_d_ssm": 8}, [Kept.ALL_AND_STATE] * 4),
        ({"hybrid_layer_pattern": [0, 1, 1, 1, 1], "sliding_window": 8}, [Kept.ALL, *[Kept.WINDOW] * 3]),
        ({"num_kv_shared_layers": 3}, [Kept.ALL, *[Kept.NOTHING] * 3]),
    ],
)
def test_layers_keep_what_the_configuration_says(keys: dict[str, Any], kept: list[Kept]) -> None:
    assert layers(num_hidden_layers=4, **keys) == kept


def test_a_type_of_layers_that_is_not_known_is_named() -> None:
    with pytest.raises(Unsupported, match="got telepathic"):
        layers(num_hidden_layers=1, layers_block_type=["telepathic"])


def test_a_recurrent_layer_beside_attention_counts_both(tmp_path: pathlib.Path) -> None:
    config = {
        "model_type": "falcon_h1",
        "architectures": ["FalconH1ForCausalLM"],
        **{"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"head_dim": 16, "max_position_embeddings": 128, "vocab_size": 64, "intermediate_size": 64},
        **{"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8},
        "mamba_d_conv": 4,
    }
    caches = caches_of(config, tmp_path)
    assert (caches["full attention"].layers, caches["full attention"].token_bytes) == (3, 2 * 2 * 16 * 2)
    # A matrix for each head, and the last inputs of a convolution over 64 + 2 * 8 channels.
    assert (caches["recurrent state"].layers, caches["recurrent state"].state_bytes) == (3, (4 * 16 * 8 + 80 * 3) * 2)


def test_weights_are_measured_where_they_are_and_by_their_index_otherwise(tmp_path: pathlib.Path) -> None:
    assert of_files(tmp_path) is None
    (tmp_path / "model-1.safetensors").write_bytes(bytes(100))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(50))
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(150))  # the same once more, in another form
    assert of_files(tmp_path) == Weights(150, "the checkpoint's files")
    index = {"metadata": {"total_size": 1000}, "weight_map": {"a": "model-1.safetensors", "b": "not-here.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = of_files(tmp_path)
    assert found is not None and found.num_bytes == 1000
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index | {"metadata": {}}))
    assert of_files(tmp_path) is None  # a file of the index is missing, so the others are not all


def test_an_estimate_is_as_large_as_the_files() -> None:
    checkpoint = read_checkpoint(str(DEMO), {})
    measured, guessed = of_files(DEMO), estimate_weights(checkpoint.text_config, 4)
    assert measured is not None and measured.num_bytes and guessed.num_bytes
    assert guessed.num_bytes == pytest.approx(measured.num_bytes, rel=0.01)


def test_quantised_weights_take_less_and_embeddings_stay() -> None:
    config = read_checkpoint(str(DEMO), {}).text_config
    whole = estimate_weights(config, 2).num_bytes
    config.quantization_config = {"quant_method": "fp8"}
    quantised = estimate_weights(config, 2).num_bytes
    assert whole is not None and quantised is not None
    kept = 2 * config.vocab_size * config.hidden_size  # bytes of the embedding; norms are few
    assert quantised == pytest.approx(kept + (whole - kept) / 2, rel=0.01)


def test_a_model_that_transformers_cannot_build_has_unknown_weights() -> None:
    found = estimate_weights(PreTrainedConfig(), 2)
    assert found.num_bytes is None and "cannot build the model" in found.how


def of_qwen(tmp_path: pathlib.Path, weights: Weights, gpu_bytes: int, **more: Any) -> Size:
    (tmp_path / "config.json").write_text(json.dumps(model_configs.QWEN_3_8B))
    settings = load(shipped.path_of("qwen3-yarn"), environment={})
    settings.engine.update(more.pop("engine", {}))
    settings.model = str(tmp_path)
    plan = plan_settings(settings)
    assert plan.checkpoint is not None
    return size(
        settings,
        plan.deployment,
        plan.checkpoint,
        weights,
        gpu="ours",
        gpu_bytes=gpu_bytes,
        model_bytes=2,
        gpu_memory_utilization=0.5,
        **{"context": 131072, "concurrency": 16} | more,
    )


def test_what_fits_is_what_the_sum_by_hand_says(tmp_path: pathlib.Path) -> None:
    found = of_qwen(tmp_path, Weights(16 * GIB, ""), 112 * GIB)
    # Half of 112 GiB, less 16 for weights and a little for the rotary table; a request takes 18. Two GPUs halve both.
    assert [option.requests for option in found.options] == [2, 5, 11, 23]
    assert [option.replicas for option in found.options] == [8, 4, 2, 1]
    assert [option.gpus for option in found.options] == [8, 8, 8, 8]
    assert found.best is not None and found.best.tensor_parallel_size == 1
    assert found.scale == "4"


def test_a_given_number_of_gpus_is_the_only_option(tmp_path: pathlib.Path) -> None:
    found = of_qwen(tmp_path, Weights(16 * GIB, ""), 112 * GIB, engine={"tensor_parallel_size": 2})
    assert [option.tensor_parallel_size for option in found.options] == [2]


def test_where_nothing_fits_no_replica_is_named(tmp_path: pathlib.Path) -> None:
    found = of_qwen(tmp_path, Weights(999 * GIB, ""), 112 * GIB)
    assert [option.replicas for option in found.options] == [None] * 4
    assert found.best is None


def test_a_longer_request_than_is_served_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SettingRefused, match=r"--context: must be at most 131072 tokens.*got 131073"):
        of_qwen(tmp_path, Weights(1, ""), GIB, context=131073)


def test_a_gpu_has_a_name_or_a_memory() -> None:
    assert gpus.memory_of("H200") == 143771 * 2**20
    assert (gpus.memory_of("96GiB"), gpus.memory_of("80GB")) == (96 * 2**30, 80 * 10**9)
    for wrong in ("h300", "96", "0GiB", "GiB"):
        with pytest.raises(SettingRefused, match=rf"--gpu: must be one of .*, got '{wrong}'"):
            gpus.memory_of(wrong)
    assert all(7 <= gpus.memory_of(name) / GIB <= 400 for name in gpus.names())


def test_the_command_prints_json_and_tables() -> None:
    asked = ["size", "demo", "--gpu", "24GiB", "--concurrency", "9999", "--set", "engine.gpu_memory_utilization=0.5"]
    said = CliRunner().invoke(app, [*asked, "--json"])
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    alone = told["options"][0]
    # 4 layers of 6 heads, keys and values of 32 numbers of 4 bytes; requests of 4,096 tokens.
    assert alone["kv_bytes_per_token"] == 4 * 6 * 64 * 4
    assert alone["request_bytes"] == 4096 * 6144
    assert alone["requests"] == (12 * GIB - alone["weight_bytes"] - _table_bytes()) // (4096 * 6144)
    assert alone["replicas"] == -(-9999 // alone["requests"])
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 0
    assert "full attention" in said.stdout and "not counted: activations and CUDA graphs" in said.stdout


def _table_bytes() -> int:
    """Of the rotary table: rows for the lengths of scales 1, 2, 4 and 8, 32 numbers of 4 bytes each."""
    return (512 + 1024 + 2048 + 4096) * 32 * 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h300"], "--gpu: must be one of"),
        (["--weights", "much"], "--weights: must be a number with MiB, GiB or GB"),
        (["--context", "5000"], "--context: must be at most 4096 tokens"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_line(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["size", "demo", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
