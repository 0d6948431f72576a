"""Queries that turn when they read far keys, on a GPU: the kernels, a layer around vLLM's, and engines from graphs."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
import torch
from transformers import AutoModelForCausalLM

from posenc_runtime.kernels import ops
from tests.checkpoints import TRAINED, WIDE, save_tiny
from tests.engine import test_read_time
from tests.engine.beside_stock import assert_same_to_the_bit
from tests.engine.conftest import PromptMaker
from tests.engine.read_time_oracle import ReadTimeOracle
from tests.engine.run_engine import run_engine
from tests.engine.turning_layer import CASES, Layer
from tests.gpu.modes import MODES, Mode
from tests.gpu.moved import DEVICE, fields_on_gpu, on_gpu
from tests.gpu.test_engine_bfloat16 import rms
from tests.kernels.read_time_cases import Case, Tensors, dual_chunk, rerope
from tests.tolerance import ATTENTION_TIMES_TORCH, LOGPROB_RMS_BFLOAT16, LOGPROB_RMS_FLOAT8

# Chunks, tiles and pages as they run, which the interpreter's cases are too short for.
LONG = ((5000, 1), (1, 1), (700, 700), (3000, 129), (257, 1), (1025, 1))
_SHAPE = Case(
    LONG,
    rerope(1024, 512, 128),
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    dtype=torch.bfloat16,
    layout="tokens_first",
)
KERNELS = {
    "bfloat16": _SHAPE,
    "leaky": dataclasses.replace(_SHAPE, method=rerope(1024, 512, 128, leak=16)),
    "leaky, the oldest pages bounded": dataclasses.replace(_SHAPE, method=rerope(1024, 512, 128, leak=2)),
    "dual chunk": dataclasses.replace(_SHAPE, method=dual_chunk(1024, 768, 256)),
    "gptj, partial, sinks and a cap": dataclasses.replace(
        _SHAPE, is_neox_style=False, rotary_dim=64, sinks=True, soft_cap=20.0, dtype=torch.float16
    ),
    "float8": dataclasses.replace(_SHAPE, cache=torch.float8_e4m3fn, scales="head"),
}
LAYERS = {
    f"{name} over {backend}, {str(dtype).removeprefix('torch.')}": (
        backend,
        dataclasses.replace(case, dtype=dtype, head_dim=64),
    )
    for name, case in CASES.items()
    for backend, dtype in [
        ("TRITON_ATTN", torch.float32),
        ("TRITON_ATTN", torch.bfloat16),
        ("FLASH_ATTN", torch.bfloat16),
    ]
}
# Graphs of steps with one query each hold both kinds of requests; those of all steps are not asked for.
ENGINES = {name: MODES[name] for name in ("v2-default", "v2-piecewise", "v2-in-step", "v1-default", "v1-eager")}
METHOD = test_read_time.rerope(TRAINED, 128, 64)

each_mode = pytest.mark.parametrize("mode", ENGINES.values(), ids=ENGINES)


def attended(case: Case, *, only_far: bool = False) -> Tensors:
    tensors = Tensors(case)
    out = on_gpu(tensors.out)
    ops.read_time_attention(
        on_gpu(tensors.query),
        on_gpu(tensors.key_cache),
        on_gpu(tensors.value_cache),
        fields_on_gpu(case.batch()),
        fields_on_gpu(case.read_time()),
        case.scale,
        out,
        fields_on_gpu(tensors.logits),
        only_far=only_far,
    )
    tensors.out = out.cpu()
    return tensors


@pytest.mark.parametrize("name", KERNELS)
def test_attention_at_read_time_is_as_near_as_its_data_type_allows(name: str) -> None:
    tensors = attended(KERNELS[name])
    size = float(tensors.expected.square().mean().sqrt())
    assert tensors.error() <= ATTENTION_TIMES_TORCH * 2 * torch.finfo(tensors.case.dtype).eps * size


def test_far_queries_alone_get_the_same_bits() -> None:
    case = KERNELS["bfloat16"]
    both, far = attended(case).out, attended(case, only_far=True).out
    positions = torch.cat([torch.arange(length - own, length) for length, own in case.requests])
    is_far = positions >= case.method.trained
    assert torch.equal(far[is_far], both[is_far])
    assert torch.equal(far[~is_far], Tensors(case).out[~is_far])


@pytest.mark.parametrize("name", LAYERS)
def test_short_requests_get_vllms_bits_beside_long_ones(name: str) -> None:
    backend, case = LAYERS[name]
    # In a mixed step FlashAttention divides a request's keys by how many blocks all requests have.
    has_its_bits = backend == "TRITON_ATTN" or name.startswith("lone")
    assert Layer(backend, case, DEVICE).faults(bits=has_its_bits) == []


@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("lone")])
def test_a_captured_step_of_long_and_short_requests_serves_others(name: str) -> None:
    """Captured with long and short requests, replayed for them, and then for short ones alone."""
    layer = Layer(*LAYERS[name], DEVICE)
    captured = layer.metadata()
    expected = layer.attend(layer.ours, captured)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer.attend(layer.ours, captured)
    graph.replay()
    assert torch.equal(out, expected)
    layer.shorten()
    graph.replay()
    assert torch.equal(out, layer.attend(layer.stock, captured))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Llama whose heads are 64 wide."""
    return save_tiny(tmp_path_factory.mktemp("wide"), **WIDE)


@pytest.fixture
def prompts() -> PromptMaker:
    return PromptMaker(seed=0)


@pytest.fixture(scope="module")
def oracle(wide: pathlib.Path) -> ReadTimeOracle:
    model = AutoModelForCausalLM.from_pretrained(wide, attn_implementation="eager")
    return ReadTimeOracle(model, METHOD.method(), test_read_time.plain(64, 1e4, 2))


@each_mode
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_short_and_long_requests_together_answer_as_the_oracle(
    mode: Mode, wide: pathlib.Path, oracle: ReadTimeOracle, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch = [(prompts(length), 24) for length in (5, 100, 245, 300, 700, 1000)]
    arguments = test_read_time.posenc(METHOD.section) | mode.engine
    first, again = run_engine(wide, arguments, [batch, batch], environment=mode.environment, folder=tmp_path)
    mode.assert_ran(tmp_path, "read_time")
    for answers in (first, again):
        test_read_time.assert_as(oracle, batch, answers)


@pytest.mark.parametrize(("backend", "dtype"), [("TRITON_ATTN", "float32"), ("FLASH_ATTN", "bfloat16")])
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_requests_within_the_trained_length_are_stock_vllms_to_the_bit(
    backend: str, dtype: str, wide: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    mode, longest = MODES["v2-default"], 4 * TRAINED
    short = [(prompts(length), 24) for length in (1, 7, 63, 64, 65, 150, 232)]
    batches = [short, [*short, (prompts(600), 24)]] if backend == "TRITON_ATTN" else [short]
    shared = {"dtype": dtype, "max_model_len": longest, "attention_backend": backend} | mode.engine
    stock = test_read_time.ENGINE | shared | {"hf_overrides": {"max_position_embeddings": longest}}
    ours = test_read_time.posenc(METHOD.section) | shared
    theirs = run_engine(wide, stock, batches, plugins="", environment=mode.environment, folder=tmp_path)
    answers = run_engine(wide, ours, batches, environment=mode.environment, folder=tmp_path)
    mode.assert_ran(tmp_path, "read_time")
    for said, expected in zip(answers, theirs, strict=True):
        assert_same_to_the_bit(said[: len(short)], expected[: len(short)])


@pytest.mark.parametrize("cache", ["auto", "fp8"])
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_in_bfloat16_long_requests_answer_nearly_as_float64_does(
    cache: str, wide: pathlib.Path, oracle: ReadTimeOracle, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    mode = MODES["v2-default"]
    batch = [(prompts(length), 24) for length in (40, 300, 600)]
    arguments = test_read_time.posenc(METHOD.section) | {"dtype": "bfloat16", "kv_cache_dtype": cache} | mode.engine
    (answers,) = run_engine(wide, arguments, [batch], environment=mode.environment, folder=tmp_path)
    mode.assert_ran(tmp_path, "read_time")
    for (prompt, _), answer in zip(batch, answers, strict=True):
        allowed = LOGPROB_RMS_BFLOAT16 if cache == "auto" else LOGPROB_RMS_FLOAT8
        assert rms(answer.logprobs, oracle.score(prompt, answer.token_ids)[1]) < allowed
