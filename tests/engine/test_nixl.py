"""Prefill and decode of scaled requests in two servers: the request begins at the scale at which it was prefilled."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from tests import families
from tests.checkpoints import TRAINED
from tests.engine import prefilled_elsewhere
from tests.engine.conftest import PromptMaker
from tests.engine.metrics import total
from tests.engine.prefilled_elsewhere import answer_of, asked, needs_nixl, prefilled
from tests.engine.run_engine import Answer
from tests.engine.test_crossing import ENGINE, HEADROOM, SCALES, Request
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.tolerance import LOGPROB_AFTER_CROSSING

pytestmark = [needs_nixl, pytest.mark.timeout(900)]  # two servers at once

YARN = {
    **{"rope_type": "yarn", "scales": list(SCALES), "original_max_position_embeddings": TRAINED},
    **{"headroom_tokens": HEADROOM, "on_crossing": "rerotate", "rerotate_budget_tokens": 128},
}
KEY = "0123456789abcdef" * 2
PREFIX = 320  # tokens that two of the prompts share


def serving(
    model: pathlib.Path, folder: pathlib.Path, role: str, *, key: str = KEY, **changed: Any
) -> AbstractContextManager[httpx.Client]:
    environment = {"POSENC_TRANSFER_KEY": key}
    return prefilled_elsewhere.serving(model, folder, YARN | changed, role, ENGINE, environment)


def prefilled_at(prompt: list[int]) -> int:
    """The smallest scale that covers a prompt and the one token that a server that prefills is asked for."""
    return next(scale for scale in SCALES if len(prompt) + 1 <= scale * TRAINED)


def assert_as_unrotated(oracle: UnrotatedOracle, request: Request, answer: Answer) -> None:
    prompt, max_tokens = request
    first = prefilled_at(prompt)
    greedy, logprobs = oracle.score(prompt, answer.token_ids, first)
    assert answer.token_ids == greedy
    assert max(abs(a - b) for a, b in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_AFTER_CROSSING
    assert answer.posenc is not None
    last = oracle.scale_at(len(prompt) + max_tokens - 2, first)
    crossed = [(crossing["from"], crossing["to"]) for crossing in answer.posenc["crossings"]]
    assert crossed == [(a, b) for a, b in itertools.pairwise(SCALES) if first <= a and b <= last]


@pytest.fixture(scope="module")
def prefilling(tiny: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tiny, tmp_path_factory.mktemp("prefilling") / "server", "kv_producer") as client:
        yield client


@pytest.fixture(scope="module")
def oracle(tiny: pathlib.Path) -> UnrotatedOracle:
    return UnrotatedOracle(tiny, "yarn", SCALES)


@pytest.fixture(scope="module")
def decoding(tiny: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tiny, tmp_path_factory.mktemp("decoding") / "server", "kv_consumer") as client:
        yield client


def test_a_server_goes_on_at_the_scale_at_which_another_has_prefilled(
    prefilling: httpx.Client, decoding: httpx.Client, oracle: UnrotatedOracle, prompts: PromptMaker
) -> None:
    """At the scale that it would choose itself, at the one below, over crossings, and with a prefix of its own."""
    lengths = ((100, 20), (240, 40), (252, 30), (700, 20), (508, 60), (1000, 60))
    batch: list[Request] = [(prompts(length), new) for length, new in lengths]
    batch.append((batch[3][0][:PREFIX] + prompts(200), 20))
    before = total(str(decoding.base_url), "vllm:external_prefix_cache_hits_total")
    for prompt, new in batch:
        params = prefilled(prefilling, prompt)
        assert params["posenc"]["scale"] == prefilled_at(prompt)
        assert_as_unrotated(oracle, (prompt, new), answer_of(asked(decoding, prompt, new, params)))
    pulled = total(str(decoding.base_url), "vllm:external_prefix_cache_hits_total") - before
    assert pulled == sum(len(prompt) for prompt, _ in batch) - PREFIX
    assert total(str(decoding.base_url), "vllm:nixl_bytes_transferred_sum") > 0


def test_a_request_that_is_recomputed_when_it_crosses_begins_over_pulled_keys(
    prefilling: httpx.Client, oracle: UnrotatedOracle, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    prompt, new = prompts(240), 40
    with serving(tiny, tmp_path / "server", "kv_consumer", on_crossing="recompute") as decoding:
        answer = answer_of(asked(decoding, prompt, new, prefilled(prefilling, prompt)))
        pulled = total(str(decoding.base_url), "vllm:external_prefix_cache_hits_total")
    (_, before), (_, after) = (oracle.score(prompt, answer.token_ids, scale) for scale in (1, 2))
    num_before = TRAINED - len(prompt) + 1  # the first one is said at the last position of the prompt
    expected = [*before[:num_before], *after[num_before:]]
    assert max(abs(a - b) for a, b in zip(answer.logprobs, expected, strict=True)) < LOGPROB_AFTER_CROSSING
    assert pulled == len(prompt)


def test_what_no_server_has_signed_is_refused_and_reaches_no_cache(
    prefilling: httpx.Client, decoding: httpx.Client, oracle: UnrotatedOracle, prompts: PromptMaker
) -> None:
    prompt, other = prompts(300), prompts(300)
    honest, of_another = prefilled(prefilling, prompt), prefilled(prefilling, other)
    for posenc in (
        {**honest["posenc"], "scale": 4},
        {**honest["posenc"], "signature": "0" * 64},
        of_another["posenc"],
        None,
    ):
        refused = asked(decoding, prompt, 12, {**honest, "posenc": posenc})
        assert refused.status_code == 400, refused.text
        assert "kv_transfer_params.posenc" in refused.json()["error"]["message"]
    # What is refused reaches the engine in no other way, and the other server still has the blocks.
    bare = asked(decoding, prompt, 12, {"do_remote_prefill": True})
    assert bare.status_code == 400
    assert_as_unrotated(oracle, (prompt, 12), answer_of(asked(decoding, prompt, 12, honest)))


def test_a_server_outlives_the_one_that_has_prefilled_for_it(
    decoding: httpx.Client, oracle: UnrotatedOracle, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    prompt = prompts(300)
    with serving(tiny, tmp_path / "server", "kv_producer") as gone:
        params = prefilled(gone, prompt)
    assert asked(decoding, prompt, 12, params).status_code == 500
    again = asked(decoding, prompt, 12, None, cache_salt="again")
    assert again.raise_for_status().json()["kv_transfer_params"]["posenc"]["scale"] == 2


def test_a_pinned_request_is_refused_where_its_prompt_was_prefilled_at_another_scale(
    prefilling: httpx.Client, decoding: httpx.Client, prompts: PromptMaker
) -> None:
    prompt = prompts(250)
    params, pin = prefilled(prefilling, prompt), {"vllm_xargs": {"posenc_on_crossing": "pin"}}
    refused = asked(decoding, prompt, 40, params, **pin)
    assert refused.status_code == 400
    assert "on_crossing must not be pin" in refused.json()["error"]["message"]


def test_a_server_with_another_key_takes_nothing(
    prefilling: httpx.Client, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    prompt = prompts(300)
    with serving(tiny, tmp_path / "server", "kv_consumer", key=KEY[::-1]) as stranger:
        refused = asked(stranger, prompt, 4, prefilled(prefilling, prompt))
    assert refused.status_code == 400
    assert "the same POSENC_TRANSFER_KEY" in refused.json()["error"]["message"]


@pytest.mark.parametrize("name", ["gpt_oss", "gemma3"])
def test_layers_with_windows_go_on_as_in_one_server(name: str, prompts: PromptMaker, tmp_path: pathlib.Path) -> None:
    family = families.FAMILIES[name]
    model = families.make(name, tmp_path / "model")
    scaling = {"rope_type": "auto", "scales": [1, 2, 4], "headroom_tokens": HEADROOM}  # the budget is measured
    engine = {**ENGINE, **family.engine, "dtype": family.dtype}
    servers = {
        role: prefilled_elsewhere.serving(model, tmp_path / role, scaling, role, engine, {"POSENC_TRANSFER_KEY": KEY})
        for role in ("kv_producer", "kv_consumer")
    }
    with servers["kv_producer"] as prefilling, servers["kv_consumer"] as decoding:
        for length, new in ((family.trained // 2, 20), (family.trained + 70, 20), (2 * family.trained - 10, 30)):
            prompt = prompts(length)
            here = answer_of(asked(decoding, prompt, new, prefilled(prefilling, prompt)))
            alone = answer_of(asked(decoding, prompt, new, None, cache_salt="alone"))
            assert (here.token_ids, here.posenc["scale"]) == (alone.token_ids, alone.posenc["scale"])
            assert max(abs(a - b) for a, b in zip(here.logprobs, alone.logprobs, strict=True)) < LOGPROB_AFTER_CROSSING
        assert total(str(decoding.base_url), "vllm:nixl_bytes_transferred_sum") > 0
