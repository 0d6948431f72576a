"""What else the server is doing changes no answer."""

from __future__ import annotations

import asyncio
import pathlib
import random
from typing import Any

import openai
import pytest

from tests.engine.device import ON_CUDA, environment
from tests.engine.greedy import Said, alike
from tests.engine.metrics import total
from tests.engine.running_server import running_server

NUM_REQUESTS = 200
AT_ONCE = 32


@pytest.mark.timeout(1500)
async def test_200_requests_of_random_lengths_answer_as_each_does_alone_while_the_pool_preempts(
    tiny: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = random.Random(7)
    requests = [
        ([source.randrange(2, 256) for _ in range(source.choice((20, 100, 230, 300, 500, 900, 1500)))],
         source.randrange(32, 128),
         number % 3 and number)
        for number in range(NUM_REQUESTS)
    ]  # fmt: skip
    settings: dict[str, Any] = {
        "model": str(tiny),
        "served_model_name": "tiny",
        "scaling": {"rope_type": "yarn", "scales": [1, 2, 4, 8], "on_crossing": "pin"},
        "engine": {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "max_num_seqs": AT_ONCE,
            "max_num_batched_tokens": 512,
            # 32 requests of a mean 560 tokens want 560 blocks
            "num_gpu_blocks_override": 80,
            "kv_cache_memory_bytes": 2**28,
        },
    }
    gate = asyncio.Semaphore(AT_ONCE)
    with running_server(tmp_path, settings, environment()) as address:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=600) as client:

            async def answer(prompt: list[int], max_tokens: int, seed: int) -> tuple[Said, float]:
                completion = await client.completions.create(
                    model="tiny",
                    prompt=prompt,
                    max_tokens=max_tokens,
                    temperature=1 if seed else 0,
                    seed=seed,
                    logprobs=0,
                    extra_body={"ignore_eos": True, "return_token_ids": True},
                )
                body = completion.model_dump()
                choice = body["choices"][0]
                said = choice["token_ids"], choice["logprobs"]["token_logprobs"]
                return said, body["kv_transfer_params"]["posenc"]["scale"]

            async def crowded(prompt: list[int], max_tokens: int, seed: int) -> tuple[Said, float]:
                async with gate:
                    return await answer(prompt, max_tokens, seed)

            together = await asyncio.gather(*(crowded(*request) for request in requests))
            preemptions = total(address, "vllm:num_preemptions_total")
            alone = [await answer(*request) for request in requests]
            assert preemptions >= 20
            assert total(address, "vllm:num_preemptions_total") == preemptions
    assert {scale for _, scale in together} == {1.0, 2.0, 4.0, 8.0}
    assert [scale for _, scale in together] == [scale for _, scale in alone]
    assert all(alike(crowded, lone) for (crowded, _), (lone, _) in zip(together, alone, strict=True))
    if not ON_CUDA:  # where the size of a batch decides in which order sums are taken, and so between equal tokens
        assert [tokens for (tokens, _), _ in together] == [tokens for (tokens, _), _ in alone]
