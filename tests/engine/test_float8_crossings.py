"""Keys that are cached in float8 are turned as well as they are recomputed, as far as float8 goes."""

from __future__ import annotations

import json
import math
import pathlib

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import save_tiny
from tests.engine import test_crossing, test_prefix_reuse
from tests.engine.conftest import PromptMaker
from tests.engine.device import ON_CUDA, on_the_cpu
from tests.engine.run_engine import Answer, blocks_in_use, run_engine
from tests.engine.test_crossing import SCALES, Request, first_scale
from tests.engine.test_prefix_reuse import reported
from tests.engine.transformers_oracle import Oracle
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.tolerance import FLOAT8_TURNED_OVER_RECOMPUTED, LOGPROB_AFTER_CROSSING, LOGPROB_RMS_FLOAT8_CACHE

pytestmark = pytest.mark.skipif(
    not ON_CUDA and not torch.cpu._is_avx512_supported(),
    reason="vLLM keeps float8 keys on a CPU with AVX-512 only",
)
CROSSING = [(240, 40), (500, 40), (200, 400), (230, 830)]  # tokens of a prompt and of its answer


def squares(answer: Answer, exact: list[float]) -> list[float]:
    return [(ours - theirs) ** 2 for ours, theirs in zip(answer.logprobs, exact, strict=True)]


def rms(errors: list[float]) -> float:
    return math.sqrt(sum(errors) / len(errors))


def recomputed(static: dict[int, Oracle], path: UnrotatedOracle, request: Request, answer: Answer) -> list[float]:
    """Logprobs of each token by a fresh run at the scale that the request then had."""
    prompt, max_tokens = request
    first = first_scale(prompt, max_tokens)
    scales = [path.scale_at(len(prompt) + index - 1, first) for index in range(max_tokens)]
    scored = {scale: static[scale].score(prompt, answer.token_ids)[1] for scale in set(scales)}
    return [scored[scale][index] for index, scale in enumerate(scales)]


ON_A_GPU = pytest.mark.skipif(not ON_CUDA, reason="vLLM keeps such keys on GPUs only; test_as_on_a_gpu.py has others")


@pytest.mark.parametrize(
    ("kept", "mode"),
    [
        ("fp8", "eager"),
        pytest.param("fp8_e5m2", "compiled", marks=on_the_cpu("vLLM's other backends keep no e5m2")),
        pytest.param("int8_per_token_head", "eager", marks=ON_A_GPU),
        pytest.param("fp8_per_token_head", "eager", marks=ON_A_GPU),
    ],
)
def test_turned_float8_keys_answer_about_as_well_as_recomputed_ones(
    kept: str, mode: str, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """Each against float32, whose keys were turned, or recomputed. Copies of prefixes are turned, too."""
    crossing = [(prompts(length), new) for length, new in CROSSING]
    reusing, reused_scales = zip(*test_prefix_reuse.batches(prompts), strict=True)
    asked = [crossing, *reusing]
    unrotated = UnrotatedOracle(tiny, "yarn", SCALES)
    engine = {"kv_cache_dtype": kept, "enforce_eager": mode == "eager"}
    rerotate = test_crossing.arguments("yarn", {"prefix_reuse": "rerotate", "rerotate_budget_tokens": None}, **engine)
    turned = run_engine(tiny, rerotate, asked, folder=tmp_path)
    assert blocks_in_use(tmp_path) == 0
    recompute = test_crossing.arguments("yarn", {"on_crossing": "recompute"}, **engine)
    computed = run_engine(tiny, recompute, asked, folder=tmp_path)

    static = {scale: Oracle(tiny, "yarn", scale) for scale in SCALES}
    of_turned: list[float] = []
    of_computed: list[float] = []
    for batch, ours, theirs, reused_scale in zip(asked, turned, computed, [None, *reused_scales], strict=True):
        for request, turning, computing in zip(batch, ours, theirs, strict=True):
            reused = (test_prefix_reuse.REUSED, reused_scale) if reused_scale else (0, 1)
            exact = unrotated.score(request[0], turning.token_ids, first_scale(*request), reused)[1]
            of_turned += squares(turning, exact)
            of_computed += squares(computing, recomputed(static, unrotated, request, computing))
            assert turning.posenc is not None and computing.posenc is not None
            assert len(turning.posenc["crossings"]) == len(computing.posenc["crossings"])
            assert (reported(turning) is not None) == bool(reused_scale)
    assert rms(of_turned) < FLOAT8_TURNED_OVER_RECOMPUTED * rms(of_computed)


def test_scales_that_a_checkpoint_brings_make_no_difference_to_turned_keys(
    prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """The checkpoint, not the deployment, says that keys are float8, and by what each layer's are multiplied."""
    model = save_tiny(tmp_path / "with-scales")
    config = json.loads((model / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {},
        "ignore": ["lm_head"],
        "kv_cache_scheme": scheme,
    }
    (model / "config.json").write_text(json.dumps(config))
    weights = load_file(model / "model.safetensors")
    for layer, (k_scale, v_scale) in enumerate([(0.03, 0.01), (0.05, 0.02)]):
        weights[f"model.layers.{layer}.self_attn.k_scale"] = torch.tensor(k_scale)
        weights[f"model.layers.{layer}.self_attn.v_scale"] = torch.tensor(v_scale)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    batch = [(prompts(length), new) for length, new in CROSSING[:3]]
    (answers,) = run_engine(model, test_crossing.arguments("yarn"), [batch], folder=tmp_path)
    unrotated = UnrotatedOracle(model, "yarn", SCALES)
    for request, answer in zip(batch, answers, strict=True):
        assert answer.posenc is not None and answer.posenc["crossings"]
        exact = unrotated.score(request[0], answer.token_ids, first_scale(*request))[1]
        error = rms(squares(answer, exact))
        assert LOGPROB_AFTER_CROSSING < error < LOGPROB_RMS_FLOAT8_CACHE  # so that keys were float8
