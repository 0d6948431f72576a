"""Every position encoding, served: what was trained in transformers is what answers, over HTTP for some."""

from __future__ import annotations

import asyncio
import pathlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from posenc_runtime.decoder import register
from posenc_runtime.decoder.positions import available, encoding
from posenc_runtime.kv.deployment import UNROTATED, Deployment
from posenc_runtime.vllm_adapter.checkpoint.attention_needs import needed_by
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import save_tiny
from tests.engine.device import environment, most_workers
from tests.engine.greedy import Said, greedy
from tests.engine.metrics import total
from tests.engine.run_engine import counted, run_engine
from tests.engine.running_server import running_server
from tests.gpu.test_engine_bfloat16 import rms
from tests.tolerance import LOGPROB_FLOAT32, LOGPROB_RMS_BFLOAT16

NEW_TOKENS = 64
SHORTER = 224  # tokens that are served over HTTP of the trained 256
LENGTHS = (3, 70, 150, 33, 97, 64, 30, 90)
# Over two workers, where there are two: they have numbers for each head, or a kernel.
SPLIT = ("cope", "kerple_log", "t5", "transformer_xl")
# One for each way to get positions in: a kernel of its own, a bias in a kernel, embeddings. Of the others an engine in
# one process says as much, and starts sooner.
OVER_HTTP = ("cope", "t5", "learned")
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "block_size": 32,
    "max_num_batched_tokens": 64,  # cuts the prompts, and mixes their parts with decoding
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 14,  # of the 35 that all requests want together
    "kv_cache_memory_bytes": 2**26,
}
COMPILED = ("cope", "learned")  # with an operation of ours in each layer, and with positions in the embeddings


class Oracle:
    """Teacher-forced greedy choices and logprobs of our transformers model."""

    def __init__(self, model: pathlib.Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @torch.no_grad()
    def score(self, prompt: list[int], token_ids: list[int]) -> Said:
        logits = self._model(torch.tensor([prompt + token_ids])).logits[0]
        return greedy(logits.log_softmax(-1)[len(prompt) - 1 : -1], token_ids)


def prompts() -> Iterator[list[int]]:
    draw = random.Random(3)
    yield from ([draw.randrange(2, 256) for _ in range(length)] for length in LENGTHS)


def checkpoint(folder: pathlib.Path, kind: str) -> pathlib.Path:
    register()
    parameters = {} if kind == "rope" else {"rope_parameters": None}
    return save_tiny(folder / kind, "posenc", position_encoding_type=kind, **parameters)


def workers_of(kind: str) -> int:
    return most_workers(2) if kind in SPLIT else 1


def unrotated(max_model_len: int) -> Deployment:
    """Of a model without rotary embeddings."""
    return Deployment(
        rope_type=UNROTATED,
        original_max_position_embeddings=max_model_len,
        max_model_len=max_model_len,
        on_crossing="pin",
        allow_beyond_trained=True,
    )


def assert_as_trained(
    model: pathlib.Path, said: Iterable[tuple[list[int], Said]], tolerance: float = LOGPROB_FLOAT32
) -> None:
    oracle = Oracle(model)
    for prompt, (token_ids, logprobs) in said:
        choices, expected = oracle.score(prompt, token_ids)
        assert token_ids == choices
        assert max(abs(a - b) for a, b in zip(logprobs, expected, strict=True)) < tolerance


@pytest.mark.parametrize("kind", [kind for kind in available() if kind not in OVER_HTTP])
def test_an_encoding_answers_in_one_process_as_it_was_trained(kind: str, tmp_path: pathlib.Path) -> None:
    model, asked = checkpoint(tmp_path, kind), list(prompts())
    arguments = engine_arguments(
        unrotated(256),
        ENGINE | {"enforce_eager": True, "disable_log_stats": False, "tensor_parallel_size": workers_of(kind)},
        AttentionChoice(needs=needed_by(encoding(kind))),
    )
    together = [(prompt, NEW_TOKENS) for prompt in asked]
    batches = [together, *([request] for request in together), together[-1:]]
    answers = run_engine(model, arguments, batches, folder=tmp_path)
    assert counted(tmp_path, "vllm:num_preemptions") >= 1
    assert answers[-1][0].num_cached_tokens == LENGTHS[-1] // 32 * 32
    assert_as_trained(
        model,
        (
            (prompt, (answer.token_ids, answer.logprobs))
            for batch, answered in zip(batches, answers, strict=True)
            for (prompt, _), answer in zip(batch, answered, strict=True)
        ),
    )


@pytest.mark.parametrize("kind", ["cope", "kerple_log"])
def test_an_encoding_answers_in_bfloat16_nearly_as_it_was_trained(kind: str, tmp_path: pathlib.Path) -> None:
    model, asked = checkpoint(tmp_path, kind), [(prompt, NEW_TOKENS) for prompt in prompts()]
    arguments = engine_arguments(
        unrotated(256),
        ENGINE | {"enforce_eager": True, "dtype": "bfloat16"},
        AttentionChoice(needs=needed_by(encoding(kind))),
    )
    (answers,) = run_engine(model, arguments, [asked], folder=tmp_path)
    oracle = Oracle(model)
    for (prompt, _), answer in zip(asked, answers, strict=True):
        _, expected = oracle.score(prompt, answer.token_ids)
        assert rms(answer.logprobs, expected) < LOGPROB_RMS_BFLOAT16


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.promise("contextual positions") if kind == "cope" else ())
        for kind in OVER_HTTP
    ],
)
async def test_an_encoding_answers_as_it_was_trained(kind: str, tmp_path: pathlib.Path) -> None:
    model = checkpoint(tmp_path, kind)
    engine = ENGINE | {"enforce_eager": kind not in COMPILED}
    engine["tensor_parallel_size"] = workers = workers_of(kind)
    settings = {"model": str(model), "served_model_name": "tiny", "max_model_len": SHORTER, "engine": engine}
    with running_server(tmp_path, settings, environment(workers), imported=True) as address:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=300) as client:

            async def answer(prompt: list[int]) -> Said:
                completion = await client.completions.create(
                    model="tiny",
                    prompt=prompt,
                    max_tokens=NEW_TOKENS,
                    temperature=0,
                    logprobs=0,
                    extra_body={"ignore_eos": True, "return_token_ids": True},
                )
                choice = completion.model_dump()["choices"][0]
                return choice["token_ids"], choice["logprobs"]["token_logprobs"]

            asked = list(prompts())
            together = await asyncio.gather(*(answer(prompt) for prompt in asked))
            preemptions = total(address, "vllm:num_preemptions_total")
            alone = [await answer(prompt) for prompt in asked]
            before = total(address, "vllm:prefix_cache_hits_total")
            again = await answer(asked[-1])
            after = total(address, "vllm:prefix_cache_hits_total")
            by_default = await client.completions.create(model="tiny", prompt=asked[0], extra_body={"ignore_eos": True})
    assert by_default.usage is not None and by_default.usage.completion_tokens == 16  # vLLM's own: nothing is scaled
    assert preemptions >= 1
    assert after == before + LENGTHS[-1] // 32 * 32
    assert_as_trained(model, [*zip(asked, together, strict=True), *zip(asked, alone, strict=True), (asked[-1], again)])
