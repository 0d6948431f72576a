"""The trained length, under the names and in the contradictions that published configurations have."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import CohereConfig, GPT2Config, LlamaConfig, PreTrainedConfig
from vllm.transformers_utils.configs.step3p5 import Step3p5Config

from posenc_runtime.vllm_adapter.checkpoint.stated_positions import stated_length


@pytest.mark.parametrize(
    ("config", "length"),
    [
        pytest.param(LlamaConfig(max_position_embeddings=8192), 8192, id="one"),
        pytest.param(GPT2Config(n_positions=1024), 1024, id="n_positions"),
        pytest.param(LlamaConfig(max_position_embeddings=32768, seq_length=8192), 8192, id="a shorter one"),
        pytest.param(LlamaConfig(max_position_embeddings=4096, max_sequence_length=16384), 4096, id="a longer one"),
        pytest.param(CohereConfig(max_position_embeddings=8192, model_max_length=131072), 131072, id="command-r"),
        pytest.param(Step3p5Config(max_position_embeddings=262144), 262144, id="a class has another"),
        pytest.param(Step3p5Config(), 4096, id="a class has the only one"),
        pytest.param(Step3p5Config(max_position_embeddings=262144, max_seq_len=65536), 65536, id="not the class's"),
        pytest.param(PreTrainedConfig(), None, id="none"),
    ],
)
def test_the_trained_length_is_the_shortest_that_a_checkpoint_states(config: Any, length: int | None) -> None:
    assert stated_length(config) == length
