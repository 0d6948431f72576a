"""Queries that turn beside what stock vLLM offers: answers on both sides of the trained length are as without it.

The cache, the scheduler and the connector are stock's, and the oracle knows none of these features.
"""

from __future__ import annotations

import importlib.util
import json
import math
import pathlib
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.checkpoints import TRAINED, save_tiny
from tests.engine.conftest import PromptMaker
from tests.engine.device import needs_workers
from tests.engine.drafters import NUM_DRAFTED, save_with_mtp, speculative_config
from tests.engine.read_time_oracle import ReadTimeOracle
from tests.engine.run_engine import Answer, blocks_in_use, counted, run_engine
from tests.engine.running_server import running_server
from tests.engine.several_answers import NUM_ANSWERS
from tests.engine.test_read_time import ENGINE, METHODS, Case, assert_as, plain, posenc, rerope
from tests.tolerance import LOGPROB_FLOAT32, LOGPROB_RMS_BFLOAT16, LOGPROB_RMS_FLOAT8, LOGPROB_RMS_FLOAT8_CACHE

REROPE = METHODS["rerope with the defaults"]
Request = tuple[list[int], int]


def oracle_of(case: Case, checkpoint: pathlib.Path) -> ReadTimeOracle:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager")
    return ReadTimeOracle(model, case.method(), plain(32, 1e4, 2))


@pytest.fixture(scope="module")
def oracle(tiny: pathlib.Path) -> ReadTimeOracle:
    return oracle_of(REROPE, tiny)


def arguments(**engine: Any) -> dict[str, Any]:
    return posenc(REROPE.section) | {"max_model_len": 4 * TRAINED, "disable_log_stats": False} | engine


def mixed(prompts: PromptMaker) -> list[Request]:
    """Within the trained length, past it, and an answer that grows from one to the other."""
    return [(prompts(20), 30), (prompts(TRAINED - 20), 40), (prompts(500), 30), (prompts(650), 30)]


def repetitive(prompts: PromptMaker) -> list[Request]:
    """Prompts that say a phrase again and again: what follows it can be guessed."""
    phrase = prompts(12)
    return [(phrase * 6, 24), (phrase * 20, 40), (phrase * 40, 24)]


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle", "eagle3"])
def test_drafted_tokens_change_no_answer(
    method: str, oracle: ReadTimeOracle, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """A model that drafts for itself is right each time: its queries turn past the trained length, too."""
    batch = mixed(prompts) + repetitive(prompts)
    drafting = speculative_config(method, tiny, tmp_path)
    (answers,) = run_engine(tiny, arguments(speculative_config=drafting), [batch], folder=tmp_path)
    assert_as(oracle, batch, answers)
    drafted = counted(tmp_path, "vllm:spec_decode_num_draft_tokens")
    accepted = counted(tmp_path, "vllm:spec_decode_num_accepted_tokens")
    assert drafted > NUM_DRAFTED * len(batch)
    if method == "ngram":
        assert accepted > 0
    if method == "draft_model":
        # Every step says one token more than were drafted. Only an answer's end may cut drafts off.
        steps = sum(math.ceil((max_tokens - 1) / (NUM_DRAFTED + 1)) for _, max_tokens in batch)
        assert drafted == NUM_DRAFTED * steps
        assert accepted >= drafted - NUM_DRAFTED * len(batch)


def test_a_model_with_a_layer_that_drafts_answers_as_the_oracle(prompts: PromptMaker, tmp_path: pathlib.Path) -> None:
    """MTP: the layer's own queries turn, too. Drafts for a later token are the same layer's again."""
    model = save_with_mtp(tmp_path / "model")
    oracle = ReadTimeOracle(
        AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager"), REROPE.method(), plain(16, 1e4, 3)
    )
    batch = mixed(prompts) + repetitive(prompts)
    drafting = {"method": "mtp", "num_speculative_tokens": NUM_DRAFTED}
    (answers,) = run_engine(model, arguments(speculative_config=drafting), [batch], folder=tmp_path)
    assert_as(oracle, batch, answers)
    assert counted(tmp_path, "vllm:spec_decode_num_draft_tokens") > NUM_DRAFTED * len(batch)


needs_float8 = pytest.mark.skipif(
    not torch.cpu._is_avx512_supported(), reason="vLLM keeps float8 keys on a CPU with AVX-512 only"
)


@pytest.mark.parametrize(
    ("dtype", "kept", "off"),
    [
        pytest.param("float32", "fp8", LOGPROB_RMS_FLOAT8_CACHE, id="float32, float8 cache", marks=needs_float8),
        pytest.param("bfloat16", "auto", LOGPROB_RMS_BFLOAT16, id="bfloat16"),
        pytest.param("bfloat16", "fp8", LOGPROB_RMS_FLOAT8, id="bfloat16, float8 cache", marks=needs_float8),
    ],
)
def test_fewer_bits_answer_about_as_the_oracle(
    dtype: str,
    kept: str,
    off: float,
    oracle: ReadTimeOracle,
    tiny: pathlib.Path,
    prompts: PromptMaker,
    tmp_path: pathlib.Path,
) -> None:
    """In bfloat16, a CPU with AMX keeps keys and values in another order."""
    batch = mixed(prompts)
    (answers,) = run_engine(tiny, arguments(dtype=dtype, kv_cache_dtype=kept), [batch], folder=tmp_path)
    for (prompt, _), answer in zip(batch, answers, strict=True):
        _, logprobs = oracle.score(prompt, answer.token_ids)
        squares = [(ours - exact) ** 2 for ours, exact in zip(answer.logprobs, logprobs, strict=True)]
        assert math.sqrt(sum(squares) / len(squares)) < off


def assert_logprobs_as(oracle: ReadTimeOracle, batch: list[Request], answers: list[Answer]) -> None:
    for number, answer in enumerate(answers):
        _, logprobs = oracle.score(batch[number // NUM_ANSWERS][0], answer.token_ids)
        assert max(abs(ours - exact) for ours, exact in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_FLOAT32


def test_several_answers_and_beams_are_the_oracles_and_other_parts_are_stocks(
    oracle: ReadTimeOracle, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    drawn, beams = mixed(prompts), [(prompts(TRAINED - 10), 20), (prompts(500), 8)]
    module = "tests.engine.several_answers"
    of_drawn, of_beams = run_engine(tiny, arguments(), [drawn, beams], module=module, folder=tmp_path)
    assert len({tuple(answer.token_ids) for answer in of_drawn}) == NUM_ANSWERS * len(drawn)
    assert_logprobs_as(oracle, drawn, of_drawn)
    assert len({tuple(answer.token_ids) for answer in of_beams}) == NUM_ANSWERS * len(beams)
    assert_logprobs_as(oracle, beams, of_beams)
    assert json.loads((tmp_path / "result.json").read_text())["registered"] == {
        "scheduler_cls": None,
        "scheduler": "vllm.v1.core.sched.scheduler",
        "kv_transfer_config": None,
        "connector": None,
        "kv_cache_specs": ["vllm.v1.kv_cache_interface.FullAttentionSpec"],
    }


def test_preempted_requests_of_several_priorities_answer_as_the_oracle(
    oracle: ReadTimeOracle, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """They share a prefix that reaches past the trained length, and the pool holds a third of them."""
    shared = prompts(TRAINED + 44)
    lengths = [(250, 60), (20, 40), (30, 90), (300, 60), (60, 90), (10, 120)]
    batch = [
        (shared[:begin] + prompts(length), new) for begin, (length, new) in zip((0, 0, 300) * 2, lengths, strict=True)
    ]
    engine = arguments(num_gpu_blocks_override=34, scheduling_policy="priority")
    first, again = run_engine(tiny, engine, [batch, batch[:3]], module="tests.engine.by_priority", folder=tmp_path)
    assert_as(oracle, batch, first)
    assert_as(oracle, batch[:3], again)
    assert counted(tmp_path, "vllm:num_preemptions") > 0
    assert blocks_in_use(tmp_path) == 0


@needs_workers(2)
@pytest.mark.parametrize(
    "parallel",
    [
        {"tensor_parallel_size": 2},
        # In eager mode stock vLLM's CPU runner fails with two stages: it skips the warm-up that they need.
        {"pipeline_parallel_size": 2, "enforce_eager": False},
    ],
    ids=["tensor", "pipeline"],
)
def test_two_workers_answer_as_the_oracle(
    parallel: dict[str, Any], oracle: ReadTimeOracle, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch = mixed(prompts)
    (answers,) = run_engine(tiny, arguments(**parallel), [batch], folder=tmp_path)
    assert_as(oracle, batch, answers)


@needs_workers(2)
def test_two_engines_behind_one_server_answer_as_the_oracle(
    oracle: ReadTimeOracle, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch = mixed(prompts) + mixed(prompts)
    engine = {name: value for name, value in ENGINE.items() if name != "max_num_seqs"} | {"data_parallel_size": 2}
    settings = {
        **{"model": str(tiny), "served_model_name": "tiny", "scaling": REROPE.section, "engine": engine},
        "max_model_len": 4 * TRAINED,
    }
    with (
        running_server(tmp_path, settings, imported=True) as address,
        httpx.Client(base_url=address, timeout=300) as client,
        ThreadPoolExecutor(len(batch)) as pool,
    ):
        answers = [*pool.map(lambda asked: answer_over_http(client, *asked), batch)]
        metrics = client.get("/metrics").raise_for_status().text
    assert_as(oracle, batch, answers)
    busy = re.findall(r'^vllm:generation_tokens_total\{engine="(\d)".*\} (\S+)$', metrics, re.MULTILINE)
    assert {number for number, tokens in busy if float(tokens)} == {"0", "1"}


def test_plain_vllm_with_one_flag_answers_and_scores_as_the_oracle(
    oracle: ReadTimeOracle, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch, query, labels = mixed(prompts), prompts(TRAINED + 40), [7, 9]
    items = [prompts(2), prompts(12)]
    settings = {
        **{"model": str(tiny), "served_model_name": "tiny", "scaling": REROPE.section, "engine": ENGINE},
        "max_model_len": 4 * TRAINED,
    }
    with (
        running_server(tmp_path, settings, server="vllm", imported=True) as address,
        httpx.Client(base_url=address, timeout=300) as client,
    ):
        answers = [answer_over_http(client, *asked) for asked in batch]
        asked = {"model": "tiny", "query": query, "items": items, "label_token_ids": labels, "apply_softmax": False}
        scored = client.post("/generative_scoring", json=asked).raise_for_status().json()["data"]
    assert_as(oracle, batch, answers)
    for item, found in zip(items, scored, strict=True):
        right = oracle.score(query + item, labels[:1])[1][0]
        assert abs(math.log(found["score"]) - right) < LOGPROB_FLOAT32


def answer_over_http(client: httpx.Client, prompt: list[int], max_tokens: int) -> Answer:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    said = client.post("/v1/completions", json=body | {"logprobs": 0, "return_token_ids": True}).raise_for_status()
    [choice] = said.json()["choices"]
    return Answer(choice["token_ids"], choice["logprobs"]["token_logprobs"], 0, None)


@pytest.mark.parametrize("drafting", [None, "ngram", "draft_model"], ids=["no drafts", "n-grams", "a draft model"])
def test_blocks_that_were_offloaded_to_memory_are_read_again(
    drafting: str | None, oracle: ReadTimeOracle, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """Other requests take the pool between a prompt and its return."""
    first, others = [(prompts(600), 8), (prompts(200), 8)], [(prompts(length), 8) for length in (900, 700, 800)]
    longer = [(prompt + prompts(40), 8) for prompt, _ in first]
    drafts = {"speculative_config": speculative_config(drafting, tiny, tmp_path)} if drafting else {}
    engine = arguments(num_gpu_blocks_override=40, kv_offloading_size=0.05) | drafts
    asked = [first, *([other] for other in others), longer]
    module = "tests.engine.offloading_on_cpu"
    answers = run_engine(tiny, engine, asked, module=module, folder=tmp_path)
    assert_as(oracle, first, answers[0])
    assert_as(oracle, longer, answers[-1])
    assert [answer.num_cached_tokens for answer in answers[-1]] == [576, 192]
    assert counted(tmp_path, "vllm:external_prefix_cache_hits") == 576 + 192


def test_the_default_page_is_a_multiple_of_the_engines_block(prompts: PromptMaker, tmp_path: pathlib.Path) -> None:
    """An eighth of 400 tokens is 50, and blocks hold 32."""
    model = save_tiny(tmp_path / "longer", max_position_embeddings=400)
    case, batch = rerope(400, 192, 32, is_written=False), [(prompts(390), 20), (prompts(600), 8)]
    (answers,) = run_engine(model, posenc(case.section) | {"max_model_len": 1024}, [batch], folder=tmp_path)
    assert_as(oracle_of(case, model), batch, answers)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install ray")
@pytest.mark.parametrize("scaled", [False, True], ids=["queries turn", "requests cross"])
def test_an_engine_in_an_actor_of_ray_answers_as_any_other(
    scaled: bool, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    batch, section = mixed(prompts), {"rope_type": "yarn", "scales": [1, 2, 4], "headroom_tokens": 8}
    asked = posenc(section) | {"max_model_len": 4 * TRAINED} if scaled else arguments()
    (answers,) = run_engine(tiny, asked, [batch], module="tests.engine.run_in_ray", folder=tmp_path)
    (expected,) = run_engine(tiny, asked, [batch], folder=tmp_path)
    assert answers == expected
