"""Queries that turn, and prefill and decode in two servers: NIXL carries keys between equal deployments alone.

Over loopback and TCP, from memory to memory. The router is the test.
"""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.benchmarks.servers import free_port
from tests.checkpoints import TRAINED
from tests.engine.conftest import PromptMaker
from tests.engine.metrics import total
from tests.engine.read_time_oracle import ReadTimeOracle
from tests.engine.run_engine import Answer
from tests.engine.running_server import running_server
from tests.engine.test_read_time import ENGINE, METHODS, Case, assert_as, rerope
from tests.engine.test_read_time_beside import Request, oracle_of

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("nixl") is None, reason="needs NIXL: pip install --no-deps nixl nixl-cu12"
    ),
    pytest.mark.timeout(900),  # two servers at once
]

REROPE = METHODS["rerope with the defaults"]
TO_PREFILL = {
    **{"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None},
    **{"remote_host": None, "remote_port": None},
}


@contextlib.contextmanager
def serving(model: pathlib.Path, folder: pathlib.Path, case: Case, role: str) -> Iterator[httpx.Client]:
    """A server that gives keys to others, or takes theirs."""
    folder.mkdir()
    settings = {
        **{"model": str(model), "served_model_name": "tiny", "scaling": case.section, "max_model_len": 4 * TRAINED},
        "engine": ENGINE | {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": role}},
    }
    environment = {
        **{"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())},
        **{"UCX_TLS": "tcp,self,sm", "UCX_NET_DEVICES": "lo", "OMP_NUM_THREADS": "1"},
    }
    log = folder / "server.log"
    with (
        running_server(folder, settings, environment, imported=True, log=log) as address,
        httpx.Client(base_url=address, timeout=300) as client,
    ):
        yield client


def asked(client: httpx.Client, prompt: list[int], max_tokens: int, params: dict[str, Any] | None) -> httpx.Response:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return client.post(
        "/v1/completions", json=body | {"logprobs": 0, "return_token_ids": True, "kv_transfer_params": params}
    )


def answer_of(response: httpx.Response) -> Answer:
    said = response.raise_for_status().json()
    [choice] = said["choices"]
    return Answer(choice["token_ids"], choice["logprobs"]["token_logprobs"], 0, None)


def prefilled(client: httpx.Client, prompt: list[int]) -> dict[str, Any]:
    """What a server that has prefilled a prompt says of where its keys are."""
    params: dict[str, Any] = asked(client, prompt, 1, TO_PREFILL).raise_for_status().json()["kv_transfer_params"]
    assert params["remote_block_ids"] and params["posenc"]["tokens_past_trained"] == max(0, len(prompt) + 1 - TRAINED)
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
