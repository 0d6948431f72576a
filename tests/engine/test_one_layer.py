"""Models that rotate otherwise than Llama, with one layer: there a re-rotated key is the one that is computed again."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.checkpoints import save_tiny
from tests.engine import test_crossing
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import Answer, run_engine
from tests.tolerance import LOGPROB_AFTER_CROSSING

# Ernie 4.5 changes the style of the rotary embedding that vLLM made for it; GLM-4 rotates neighbours of half a head;
# MiniCPM 3 rotates the end of each head.
MODELS: dict[str, dict[str, Any]] = {
    "ernie4_5": {},
    "glm4": {},
    "minicpm3": {
        **{"qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 32, "kv_lora_rank": 32},
        **{"num_key_value_heads": 4, "head_dim": None},
    },
}


def crossed(model: pathlib.Path, prompt: list[int], on_crossing: str, folder: pathlib.Path) -> Answer:
    arguments = test_crossing.arguments("linear", {"on_crossing": on_crossing, "scales": (1, 2), "max_model_len": 512})
    ((answer,),) = run_engine(model, arguments, [[(prompt, 40)]], folder=folder)
    assert answer.posenc is not None and [crossing["how"] for crossing in answer.posenc["crossings"]] == [on_crossing]
    return answer


@pytest.mark.parametrize("model_type", MODELS)
def test_turned_keys_of_the_first_layer_are_those_of_another_prefill(
    model_type: str, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    model = save_tiny(tmp_path / model_type, model_type, num_hidden_layers=1, **MODELS[model_type])
    prompt = prompts(240)
    turned, computed = (crossed(model, prompt, how, tmp_path) for how in ("rerotate", "recompute"))
    assert turned.token_ids == computed.token_ids
    assert turned.logprobs == pytest.approx(computed.logprobs, rel=0, abs=LOGPROB_AFTER_CROSSING)
