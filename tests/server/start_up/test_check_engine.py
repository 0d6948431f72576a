"""What ``posenc check`` finds in vLLM's own configuration, and what the server says of an address it cannot have."""

from __future__ import annotations

import argparse
import errno
import os
import pathlib
import sys
from typing import Any

import pytest
from transformers import FalconConfig, HrmTextConfig, MiniCPM3Config, PreTrainedConfig, Qwen2Config
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.platforms import current_platform
from vllm.transformers_utils import config as vllm_config

from posenc_runtime.vllm_adapter import serving
from tests import model_configs
from tests.checkpoints import save_tiny, save_weights
from tests.model_configs import DUAL_CHUNKS
from tests.server.command import run


@pytest.fixture(autouse=True)
def configured_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's configuration is made, and vLLM logs what it logs by default, whoever runs the tests."""
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)


def check(model: pathlib.Path, folder: pathlib.Path, **settings: Any) -> tuple[int, str, str]:
    scaling = {"rope_type": "yarn", "scales": [1, 2]}
    return run(folder, {"model": str(model), "scaling": scaling} | settings, "check")


def test_a_file_that_can_be_served_is_accepted(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    status, out, err = check(model, tmp_path, engine={"dtype": "float32", "block_size": 32})
    assert (status, err) == (0, "") and "yarn at scales 1, 2" in out


def test_how_requests_of_a_model_may_cross_is_said(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _, out, _ = check(model, tmp_path)
    assert "crossings: rerotate, recompute or pin\n" in out


def test_keys_that_change_after_their_rotation_are_refused_before_loading(tmp_path: pathlib.Path) -> None:
    hunyuan = save_tiny(tmp_path / "hunyuan", "hunyuan_v1_dense")
    status, _, err = check(hunyuan, tmp_path)
    assert status == 2
    assert "but HunYuanDenseV1ForCausalLM changes them in another way: set on_crossing to recompute or pin" in err
    scaling = {"rope_type": "yarn", "scales": [1, 2], "on_crossing": "recompute", "prefix_reuse": "exact"}
    status, out, err = check(hunyuan, tmp_path, scaling=scaling)
    assert (status, err) == (0, "")
    assert "crossings: recompute or pin, because its layers change keys after their rotation" in out


ON_THE_CPU = pytest.mark.skipif(not current_platform.is_cpu(), reason="other backends take other sizes")


@ON_THE_CPU
def test_pages_are_those_of_the_blocks_that_vllm_chooses(tmp_path: pathlib.Path) -> None:
    """An eighth of 1,700 tokens is 212, and vLLM's blocks have 128 on a CPU."""
    model = save_tiny(tmp_path / "model", max_position_embeddings=1700)
    status, out, err = check(model, tmp_path, scaling={"rope_type": "rerope"})
    assert (status, err) == (0, "")
    assert "in pages of 128" in " ".join(out.split())


REFUSED = [
    pytest.param(
        {"engine": {"kv_cache_dtype": "int8_per_token_head"}},
        "engine.kv_cache_dtype must be one of auto, float16, bfloat16, fp8, fp8_e4m3, fp8_e5m2 where keys are re-r",
        id="int8",
    ),
    pytest.param(
        {"engine": {"speculative_config": {"method": "medusa", "num_speculative_tokens": 2}}},
        "speculative_config.method must be one of ngram, draft_model, eagle, eagle3, mtp, got medusa",
        id="speculative",
    ),
    pytest.param(
        {"engine": {"kv_offloading_size": 4, "kv_offloading_backend": "lmcache"}},
        "engine.kv_offloading_backend must be native where requests are scaled, got lmcache",
        id="offloading",
    ),
    pytest.param(
        {"engine": {"gpu_memory_utilization": 2.0}},
        "engine.gpu_memory_utilization: must be less than or equal to 1, got 2.0",
        id="out of range",
    ),
    pytest.param(
        {"engine": {"tensor_parallel_size": 3}},
        "engine: Total number of attention heads (4) must be divisible by tensor parallel size (3).",
        id="two that contradict",
    ),
    pytest.param(
        {"engine": {"block_size": 7}},
        "engine.block_size must be a multiple of 32 on the CPU, got 7",
        marks=ON_THE_CPU,
        id="block size",
    ),
    pytest.param(
        {"attention": {"backend": "bias"}},
        "attention.backend must be auto or stock where keys are re-rotated, got bias",
        id="bias",
    ),
    pytest.param(
        {"attention": {"backend": "cope"}},
        "attention.backend: must be auto for a model without contextual positions, got 'cope'",
        id="cope",
    ),
]


@pytest.mark.parametrize(("settings", "rule"), REFUSED)
def test_what_serve_refuses_before_it_starts_check_refuses_in_one_line(
    settings: dict[str, Any], rule: str, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    status, out, err = check(model, tmp_path, **settings)
    assert (status, out) == (2, "")
    assert err.startswith(f"refused {rule}") and len(err.splitlines()) == 1


@pytest.mark.parametrize("text", [None, '{"model":'], ids=["none", "half of one"])
def test_a_model_whose_tokenizer_cannot_be_read_is_refused_unless_another_is_named(
    text: str | None, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    without = save_tiny(tmp_path / "model")
    for file in without.glob("tokenizer*"):
        file.unlink()
    if text is not None:
        (without / "tokenizer.json").write_text(text)
    status, out, err = check(without, tmp_path)
    assert (status, out) == (2, "") and len(err.splitlines()) == 1
    assert err.startswith("refused engine.tokenizer: must be a tokenizer's name or folder (default: the model's), got ")
    assert repr(str(without)) in err
    assert check(without, tmp_path, engine={"tokenizer": str(model)})[0] == 0
    assert check(without, tmp_path, engine={"skip_tokenizer_init": True})[0] == 0


def test_a_generation_config_that_is_not_there_is_refused(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    status, out, err = check(model, tmp_path, engine={"generation_config": str(tmp_path / "nowhere")})
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith(  # vLLM says first where it has looked
        "refused engine.generation_config: must be auto, vllm, or a folder with a generation_config.json, got "
    )


@pytest.mark.parametrize(
    ("uds", "named"),
    [
        (None, "server.host, server.port: must be a free address, got 127.0.0.1 and 8000"),
        ("/run/posenc.sock", "server.uds: must be a free address, got /run/posenc.sock"),
    ],
)
def test_an_address_that_is_taken_is_named_with_its_settings(
    uds: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(args: argparse.Namespace) -> None:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    # vLLM's own leaves the socket to the garbage collector, which warns.
    monkeypatch.setattr(ServeSubcommand, "cmd", serve)
    with pytest.raises(serving.CannotListen) as caught:
        args = argparse.Namespace(host="127.0.0.1", port=8000, uds=uds)
        serving.run(serving.Configured(args, plan=Any, vllm_config=Any), "ended", sys.exit)
    assert str(caught.value) == f"{named}: Address already in use"


@pytest.mark.parametrize(
    ("max_model_len", "status", "said"),
    [
        (
            512,
            2,
            "engine.disable_sliding_window: must be false where max_model_len is above 64, the window that Mistral",
        ),
        (64, 0, ""),
    ],
    ids=["past-the-window", "within-the-window"],
)
def test_a_window_is_taken_from_layers_only_where_requests_fit_into_it(
    max_model_len: int, status: int, said: str, tmp_path: pathlib.Path
) -> None:
    windowed = save_tiny(tmp_path / "model", "mistral", sliding_window=64)
    engine = {"dtype": "float32", "enforce_eager": True, "disable_sliding_window": True}
    found, _, err = check(windowed, tmp_path, engine=engine, max_model_len=max_model_len)
    assert found == status and said in err


def test_a_model_with_a_sliding_window_is_served_with_crossings(tmp_path: pathlib.Path) -> None:
    windowed = save_tiny(tmp_path / "model", "mistral", sliding_window=64)
    status, _, err = check(windowed, tmp_path, engine={"dtype": "float32", "enforce_eager": True}, max_model_len=512)
    assert status == 0 and "window" not in err


def saved(folder: pathlib.Path, architecture: str, config: PreTrainedConfig) -> pathlib.Path:
    return save_weights(folder / "model", config.to_dict() | {"architectures": [architecture]}, {})


# The method that each has, or that scales it, and what it was trained on.
PUBLISHED = {
    **{"GEMMA_3_1B": ("yarn", 32768), "GEMMA_4": ("yarn", 131072), "PLAMO_3": ("yarn", 4096)},
    **{"MIMO_V2": ("yarn", 262144), "LAGUNA": ("yarn", 131072), "STEP_3_5": ("llama3", 262144)},
    **{"GPT_OSS": ("yarn", 131072), "INTERNLM_2_5": ("dynamic", 32768), "DEEPSEEK_V3": ("yarn", 163840)},
    **{"OLMO_3": ("yarn", 65536)},  # on vLLM's Transformers backend
    **{"QWEN_2_5_VL": ("yarn", 128000), "QWEN_3_5": ("yarn", 262144), "MINISTRAL_3": ("yarn", 262144)},  # these see
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_kind_of_published_checkpoint_is_served(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, (rope_type, trained) = getattr(model_configs, name), PUBLISHED[name]
    if said["model_type"] in model_configs.OWN_CODE:
        monkeypatch.setitem(vllm_config._CONFIG_REGISTRY, said["model_type"], PreTrainedConfig)
    model = save_weights(tmp_path / "model", said, {})
    status, out, err = check(model, tmp_path, scaling={"rope_type": rope_type, "scales": [1, 2]})
    assert (status, err) == (0, "")
    assert f"trained on {trained} tokens, serves {2 * trained}; {rope_type} at scales 1, 2" in out


def test_heads_of_which_the_end_is_rotated_are_turned(tmp_path: pathlib.Path) -> None:
    status, _, err = check(saved(tmp_path, "MiniCPM3ForCausalLM", MiniCPM3Config()), tmp_path)
    assert (status, err) == (0, "")


def test_prompts_that_are_read_in_both_directions_are_not_computed_again(tmp_path: pathlib.Path) -> None:
    model = saved(tmp_path, "HrmTextForCausalLM", HrmTextConfig())
    status, _, err = check(model, tmp_path)
    assert status == 2
    assert "refused on_crossing must be pin and prefix_reuse must be exact for HrmTextForCausalLM" in err
    assert check(model, tmp_path, scaling={"rope_type": "yarn", "scales": [1, 2], "on_crossing": "pin"})[0] == 0


def test_dual_chunks_are_served_and_scaled_only_where_an_override_takes_them_out(tmp_path: pathlib.Path) -> None:
    million = Qwen2Config(max_position_embeddings=1010000, dual_chunk_attention_config=DUAL_CHUNKS)
    model = saved(tmp_path, "Qwen2ForCausalLM", million)
    status, out, err = check(model, tmp_path, scaling={"rope_type": "yarn", "scales": [1, 2]})
    assert (status, out) == (2, "") and len(err.splitlines()) == 1
    assert err.startswith("refused scaling.rope_type: must be auto, dual_chunk or rerope for a checkpoint with dual_")
    status, out, _ = check(model, tmp_path, scaling={"rope_type": "auto", "headroom_tokens": 9})
    assert status == 2
    status, out, _ = check(model, tmp_path, scaling={"rope_type": "auto"})
    assert status == 0 and "dual_chunk" in out and "auto: the checkpoint has a dual_chunk_attention_config" in out
    status, out, _ = check(
        model,
        tmp_path,
        scaling={"rope_type": "yarn", "scales": [1, 2], "original_max_position_embeddings": 262144},
        engine={"hf_overrides": {"dual_chunk_attention_config": None}},
    )
    assert status == 0 and "524288" in out.replace(",", "")


def test_a_falcon_with_alibi_is_served_and_not_scaled(tmp_path: pathlib.Path) -> None:
    model = saved(tmp_path, "FalconForCausalLM", FalconConfig(alibi=True))
    status, _, err = check(model, tmp_path)
    assert status == 2 and "because FalconForCausalLM has no rotary embeddings to scale" in err
    status, out, err = check(model, tmp_path, scaling={}, max_model_len=512)
    assert (status, err) == (0, "") and "bias" in out
