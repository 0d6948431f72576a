"""Queries that turn, and LMCache's server between engines: blocks go to engines with the same distances alone."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.checkpoints import TRAINED
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import Answer, counted, run_engine
from tests.engine.running_lmcache import CHUNK, QUIET, needs_lmcache, running_lmcache
from tests.engine.test_read_time import ENGINE, METHODS, assert_as, posenc, rerope
from tests.engine.test_read_time_beside import oracle_of

pytestmark = [needs_lmcache, pytest.mark.timeout(900)]  # a server, and four engines one after the other

LONGEST = 4 * TRAINED
Request = tuple[list[int], int]


def answered(
    model: pathlib.Path, arguments: dict[str, Any], transfer: dict[str, Any], batch: list[Request], **how: Any
) -> list[Answer]:
    """By an engine of its own, whose own cache is empty."""
    engine = arguments | {"max_model_len": LONGEST, "disable_log_stats": False, "kv_transfer_config": transfer}
    (answers,) = run_engine(model, engine, [batch], environment=QUIET, **how)
    return answers


@pytest.mark.parametrize("name", ["rerope with the defaults", "dual chunk"])
def test_an_engine_reads_what_one_with_the_same_distances_has_stored_and_no_other(
    name: str, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """Stored by one engine, read by the next, which writes its defaults out; then asked for by two others."""
    case = METHODS[name]
    written = {"window": 128, "page": 32} if name.startswith("rerope") else {"temperature": "yarn"}
    other = rerope(TRAINED, 64, 32)
    stored = [(prompts(length), 8) for length in (100, 250, 600, 900)]
    longer = [(prompt + prompts(40), 8) for prompt, _ in stored]
    whole = [len(prompt) // CHUNK * CHUNK for prompt, _ in stored]
    oracle = oracle_of(case, tiny)
    with running_lmcache() as transfer:
        first = answered(tiny, posenc(case.section), transfer, stored, folder=tmp_path)
        again = answered(tiny, posenc(case.section | written), transfer, longer, folder=tmp_path)
        hits = counted(tmp_path, "vllm:external_prefix_cache_hits")
        others = answered(tiny, posenc(other.section), transfer, longer, folder=tmp_path)
        unkeyed = ENGINE | {"hf_overrides": {"max_position_embeddings": LONGEST}}
        of_stock = answered(tiny, unkeyed, transfer, longer, plugins="", folder=tmp_path)
    assert_as(oracle, stored, first)
    assert_as(oracle, longer, again)
    assert [answer.num_cached_tokens for answer in again] == whole
    assert hits == sum(whole)
    assert_as(oracle_of(other, tiny), longer, others)
    for answers in (first, others, of_stock):
        assert [answer.num_cached_tokens for answer in answers] == [0] * len(stored)
