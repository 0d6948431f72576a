"""Queries that turn, and prefill and decode in two servers: NIXL carries keys between equal deployments alone."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from tests.checkpoints import TRAINED
from tests.engine import prefilled_elsewhere
from tests.engine.conftest import PromptMaker
from tests.engine.metrics import total
from tests.engine.prefilled_elsewhere import answer_of, asked, needs_nixl
from tests.engine.read_time_oracle import ReadTimeOracle
from tests.engine.test_read_time import ENGINE, METHODS, Case, assert_as, rerope
from tests.engine.test_read_time_beside import Request, oracle_of

pytestmark = [needs_nixl, pytest.mark.timeout(900)]  # two servers at once

REROPE = METHODS["rerope with the defaults"]


def serving(model: pathlib.Path, folder: pathlib.Path, case: Case, role: str) -> AbstractContextManager[httpx.Client]:
    return prefilled_elsewhere.serving(model, folder, case.section, role, ENGINE)


def prefilled(client: httpx.Client, prompt: list[int]) -> dict[str, Any]:
    params = prefilled_elsewhere.prefilled(client, prompt)
    assert params["posenc"]["tokens_past_trained"] == max(0, len(prompt) + 1 - TRAINED)
    return params


@pytest.fixture(scope="module")
def prefilling(tiny: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("prefilling") / "server"
    with serving(tiny, folder, REROPE, "kv_producer") as client:
        yield client


@pytest.fixture(scope="module")
def oracle(tiny: pathlib.Path) -> ReadTimeOracle:
    return oracle_of(REROPE, tiny)


def test_a_server_decodes_over_the_keys_of_another(
    prefilling: httpx.Client, oracle: ReadTimeOracle, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """Within the trained length, past it, across it while it decodes, and with a prefix of its own."""
    batch: list[Request] = [(prompts(length), new) for length, new in ((100, 20), (240, 40), (700, 20), (1000, 20))]
    batch.append((batch[2][0][:320] + prompts(200), 20))
    with serving(tiny, tmp_path / "decoding", REROPE, "kv_consumer") as decoding:
        answers = [answer_of(asked(decoding, *each, prefilled(prefilling, each[0]))) for each in batch]
        pulled = total(str(decoding.base_url), "vllm:external_prefix_cache_hits_total")
        num_bytes = total(str(decoding.base_url), "vllm:nixl_bytes_transferred_sum")
    assert_as(oracle, batch, answers)
    lengths = [len(prompt) for prompt, _ in batch]
    assert pulled == sum(lengths) - 320 and num_bytes > 0


def test_a_server_with_another_window_refuses_the_handshake(
    prefilling: httpx.Client, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    other, folder = rerope(TRAINED, 64, 32), tmp_path / "decoding"
    batch: list[Request] = [(prompts(700), 12)]
    with serving(tiny, folder, other, "kv_consumer") as decoding:
        refused = asked(decoding, *batch[0], prefilled(prefilling, batch[0][0]))
        answers = [answer_of(asked(decoding, *batch[0], None))]
        pulled = total(str(decoding.base_url), "vllm:nixl_bytes_transferred_sum")
    assert refused.status_code == 500
    assert "NIXL compatibility hash mismatch" in (folder / "server.log").read_text()
    assert pulled == 0
    assert_as(oracle_of(other, tiny), batch, answers)
