"""An engine serves requests as long as its deployment says, whatever else the checkpoint's configuration says."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from transformers import PreTrainedConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import registry
from vllm.transformers_utils import config as vllm_config

from posenc_runtime import vllm_adapter
from posenc_runtime.kv.deployment import Deployment
from tests import model_configs
from tests.model_configs import OWN_CODE
from tests.most_served import CONFIGURATIONS

FAMILIES = {
    name: value for name, value in vars(model_configs).items() if isinstance(value, dict) and "architectures" in value
}
# Refused before an engine is configured, as tests/server/deployment/test_most_served.py and tests/families say. The
# last one's own code says that it caches latents.
REFUSED = {
    *("Qwen/Qwen2.5-7B-Instruct-1M", "deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-V4-Flash", "zai-org/GLM-5"),
    *("HUNYUAN_7B", "SARVAM_MLA"),
}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 320, "max_position_embeddings": 8192},
}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0 + pair for pair in range(16)]}
PHI_3 = LLAMA | {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "hidden_size": 128, "pad_token_id": 0}
COMMAND_R = LLAMA | {"model_type": "cohere", "architectures": ["CohereForCausalLM"], "rope_theta": 8e6}
# The trained length, the served one, and the scales.
STATED = {
    "linear": (LLAMA | {"rope_scaling": {"type": "linear", "factor": 4}}, 8192, 32768, [1, 2, 4]),
    "dynamic": (
        LLAMA | {"max_position_embeddings": 2048, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        *(2048, 8192, [1, 2, 4]),
    ),
    "default with a factor": (
        LLAMA | {"rope_scaling": {"rope_type": "default", "factor": 4.0}},
        *(8192, 32768, [1, 2, 4]),
    ),
    "a factor alone": (LLAMA | {"rope_scaling": {"factor": 4.0}}, 8192, 32768, [1, 2, 4]),
    "longrope": (
        PHI_3 | {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_scaling": LONGROPE},
        *(4096, 131072, [1, 32]),
    ),
    "longrope for no more than trained": (
        LLAMA
        | {
            "max_position_embeddings": 32768,
            "rope_scaling": LONGROPE | {"original_max_position_embeddings": 32768},
        },
        *(32768, 32768, [1]),
    ),
    "seq_length": (LLAMA | {"max_position_embeddings": 32768, "seq_length": 8192}, 8192, 32768, [1, 2, 4]),
    "max_sequence_length": (LLAMA | {"max_sequence_length": 16384}, 8192, 32768, [1, 2, 4]),
    "command-r": (COMMAND_R | {"model_max_length": 131072}, 131072, 524288, [1, 2, 4]),
}


@pytest.fixture(autouse=True)
def inspected_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM looks at a model's class in this process, not in one of its own, which takes seconds for each model."""
    monkeypatch.setattr(registry, "_run_in_subprocess", lambda look: look())


def engine(configuration: dict[str, Any], folder: pathlib.Path, section: dict[str, Any], **arguments: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(configuration))
    vllm_adapter.register()
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        language_model_only=True,
        additional_config={"posenc": section},
        **arguments,
    ).create_engine_config()


@pytest.mark.parametrize("name", STATED)
def test_a_checkpoint_is_served_to_the_largest_scale_of_its_trained_length(name: str, tmp_path: pathlib.Path) -> None:
    configuration, trained, longest, scales = STATED[name]
    config = engine(configuration, tmp_path, {"rope_type": "auto"})
    section = config.additional_config["posenc"]
    assert (section["original_max_position_embeddings"], section["scales"]) == (trained, scales)
    assert section["max_model_len"] == config.model_config.max_model_len == longest
    assert config.model_config.original_max_model_len == -1


@pytest.mark.parametrize("longest", [None, 5000])
@pytest.mark.parametrize("name", STATED)
def test_a_deployment_that_is_complete_is_served_as_it_says(
    name: str, longest: int | None, tmp_path: pathlib.Path
) -> None:
    whole = engine(STATED[name][0], tmp_path, {"rope_type": "auto"}).additional_config["posenc"]
    config = engine(STATED[name][0], tmp_path, whole, max_model_len=longest)
    assert config.additional_config["posenc"]["max_model_len"] == config.model_config.max_model_len
    assert config.model_config.max_model_len == (longest or whole["max_model_len"])


@pytest.mark.parametrize("name", sorted({*CONFIGURATIONS, *FAMILIES} - REFUSED))
def test_the_engine_of_a_published_checkpoint_serves_its_deployment_s_length(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model_type in OWN_CODE:
        monkeypatch.setitem(vllm_config._CONFIG_REGISTRY, model_type, PreTrainedConfig)
    config = engine(CONFIGURATIONS.get(name) or FAMILIES[name], tmp_path, {"rope_type": "auto"}, dtype="bfloat16")
    deployment = Deployment.from_mapping(config.additional_config["posenc"])
    assert config.model_config.max_model_len == deployment.max_model_len
    assert deployment.max_model_len >= deployment.original_max_position_embeddings
