"""Scaled requests whose blocks are offloaded to memory are loaded again at their scale, whatever has crossed since."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.engine.conftest import PromptMaker
from tests.engine.device import ON_CUDA, on_the_cpu
from tests.engine.run_engine import blocks_in_use, counted, run_engine
from tests.engine.running_lmcache import CHUNK, QUIET, needs_lmcache, running_lmcache
from tests.engine.test_crossing import SCALES, Request, arguments, first_scale
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.tolerance import LOGPROB_AFTER_CROSSING

BLOCK_SIZE = 32
NUM_BLOCKS = 68  # of the pool: 2,144 tokens
STORED = 384  # tokens of the prompts that come back, in whole blocks


def batches(prompts: PromptMaker) -> list[list[Request]]:
    """Prompts, requests that take the pool and cross in it, and the prompts again, with a crossing of their own."""
    short, long, crossing = prompts(210), prompts(400), prompts(230)
    return [
        # One goes over a boundary while its prompt is being stored, and has no room for copies.
        [(short, 8), (crossing, 60), (prompts(1700), 40)],
        [(long, 8)],
        *[[(prompts(length), 8)] for length in (1600, 1500)],
        [(short + prompts(20), 60), (crossing, 60)],
        [(long + prompts(90), 60)],
        *[[(prompts(length), 8)] for length in (1500, 1600)],
        [(crossing + prompts(5), 40), (long + prompts(30), 30)],
    ]


@pytest.mark.parametrize(
    ("on_crossing", "ahead"),
    [("rerotate", True), ("rerotate", False), ("recompute", True)],
    ids=lambda value: str(value),
)
def test_offloaded_blocks_are_loaded_at_the_scale_that_they_were_stored_at(
    on_crossing: str, ahead: bool, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = batches(prompts)
    engine: dict[str, Any] = {"num_gpu_blocks_override": NUM_BLOCKS, "kv_offloading_size": 0.05}
    engine |= {"async_scheduling": ahead, "disable_log_stats": False}
    scaling = {"on_crossing": on_crossing}
    answers = run_engine(
        tiny,
        arguments("yarn", scaling, **engine),
        asked,
        environment={"LAG": "40"},  # steps: a request of 230 tokens crosses while its prompt is being stored
        module="tests.engine.run_engine" if ON_CUDA else "tests.engine.offloading_on_cpu",
        folder=tmp_path,
    )
    oracle = UnrotatedOracle(tiny, "yarn", SCALES)
    for batch, said in zip(asked, answers, strict=True):
        for (prompt, max_tokens), answer in zip(batch, said, strict=True):
            assert answer.posenc is not None
            crossed = [crossing["to"] for crossing in answer.posenc["crossings"]]
            if on_crossing == "recompute" and crossed:
                continue  # what it said before the crossing was computed at another scale
            greedy, logprobs = oracle.score(prompt, answer.token_ids, first_scale(prompt, max_tokens))
            assert answer.token_ids == greedy
            assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_AFTER_CROSSING
    assert counted(tmp_path, "vllm:external_prefix_cache_hits") >= 3 * STORED
    assert blocks_in_use(tmp_path) == 0


@needs_lmcache
@on_the_cpu("LMCache's server is refused beside scales on a GPU")
@pytest.mark.timeout(900)
def test_an_engine_reads_what_another_has_stored_in_lmcache_at_the_same_scale(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """One engine stores, and a request crosses; the next one reads and stores. Another method shares scale 1 alone."""
    stored: list[Request] = [(prompts(210), 8), (prompts(400), 8), (prompts(230), 60)]
    longer: list[Request] = [(prompt + prompts(15), 8) for prompt, _ in stored]
    whole, grown = ([len(prompt) // CHUNK * CHUNK for prompt, _ in batch] for batch in (stored, longer))
    said = {}
    with running_lmcache() as transfer:
        for name, rope_type, batch in (
            ("first", "yarn", stored),
            ("again", "yarn", longer),
            ("other", "linear", longer),
        ):
            engine = arguments(rope_type) | {"kv_transfer_config": transfer}
            (said[name],) = run_engine(tiny, engine, [batch], environment=QUIET, folder=tmp_path)
    cached = {name: [answer.num_cached_tokens for answer in answers] for name, answers in said.items()}
    assert cached == {"first": [0, 0, 0], "again": whole, "other": [grown[0], 0, grown[2]]}
    for name, rope_type, batch in (("first", "yarn", stored), ("again", "yarn", longer), ("other", "linear", longer)):
        oracle = UnrotatedOracle(tiny, rope_type, SCALES)
        for (prompt, max_tokens), answer in zip(batch, said[name], strict=True):
            greedy, logprobs = oracle.score(prompt, answer.token_ids, first_scale(prompt, max_tokens))
            assert answer.token_ids == greedy
            assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_AFTER_CROSSING
