"""What else the server is doing changes no answer."""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
import random
from collections import Counter
from typing import Any

import openai
import pytest

from tests.engine.device import ON_CUDA, environment
from tests.engine.greedy import Said, alike
from tests.engine.metrics import total
from tests.engine.running_server import running_server

NUM_REQUESTS = 50
AT_ONCE = 32


@dataclasses.dataclass
class Asked:
    prompt: list[int]
    max_tokens: int
    seed: int
    on_crossing: str


@pytest.mark.timeout(1500)
async def test_50_requests_of_random_lengths_answer_as_alone_while_the_pool_preempts(
    tiny: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = random.Random(16)
    texts = [[source.randrange(2, 256) for _ in range(1500)] for _ in range(20)]
    requests = [
        Asked(
            # Many begin alike, and read each other's blocks.
            prompt=[*source.choice(texts)[: source.choice((20, 100, 230, 300, 480, 980, 1500))], 2 + number % 254],
            max_tokens=source.randrange(32, 128),
            seed=number % 3 and number,
            on_crossing=source.choice(("rerotate", "recompute", "pin")),
        )
        for number in range(NUM_REQUESTS)
    ]
    settings: dict[str, Any] = {
        "model": str(tiny),
        "served_model_name": "tiny",
        "scaling": {
            "rope_type": "yarn",
            "scales": [1, 2, 4, 8],
            "headroom_tokens": 16,
            "rerotate_budget_tokens": 64,  # crossings take several steps, in which others come and go
        },
        "engine": {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "max_num_seqs": AT_ONCE,
            "max_num_batched_tokens": 512,
            # 32 requests of a mean 560 tokens want 560 blocks
            "num_gpu_blocks_override": 68,
            "kv_cache_memory_bytes": 2**28,
        },
    }
    gate = asyncio.Semaphore(AT_ONCE)
    with running_server(tmp_path, settings, environment(), imported=True) as address:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=600) as client:

            async def answer(asked: Asked) -> tuple[Said, dict[str, Any]]:
                completion = await client.completions.create(
                    model="tiny",
                    prompt=asked.prompt,
                    max_tokens=asked.max_tokens,
                    temperature=1 if asked.seed else 0,
                    seed=asked.seed,
                    logprobs=0,
                    extra_body={
                        "ignore_eos": True,
                        "return_token_ids": True,
                        "vllm_xargs": {"posenc_on_crossing": asked.on_crossing},
                    },
                )
                body = completion.model_dump()
                choice = body["choices"][0]
                said = choice["token_ids"], choice["logprobs"]["token_logprobs"]
                return said, body["kv_transfer_params"]["posenc"]

            async def crowded(asked: Asked) -> tuple[Said, dict[str, Any]]:
                async with gate:
                    return await answer(asked)

            together = await asyncio.gather(*(crowded(asked) for asked in requests))
            preemptions = total(address, "vllm:num_preemptions_total")
            alone = [await answer(asked) for asked in requests]
            preemptions_alone = total(address, "vllm:num_preemptions_total") - preemptions
    scaled = [scaling for _, scaling in together]
    assert {scaling["scale"] for scaling in scaled} == {1.0, 2.0, 4.0, 8.0}
    crossed = Counter(crossing["how"] for scaling in scaled for crossing in scaling.get("crossings", ()))
    assert min(crossed["rerotate"], crossed["recompute"]) >= 6
    # vLLM counts a crossing by recompute as a preemption; alone, nothing else is one.
    assert preemptions_alone == crossed["recompute"]
    assert preemptions - crossed["recompute"] >= 5
    assert scaled == [scaling for _, scaling in alone]
    assert all(alike(crowded, lone) for (crowded, _), (lone, _) in zip(together, alone, strict=True))
    if not ON_CUDA:  # where the size of a batch decides in which order sums are taken, and so between equal tokens
        assert [tokens for (tokens, _), _ in together] == [tokens for (tokens, _), _ in alone]
