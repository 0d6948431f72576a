"""Prefill and decode in two servers over NIXL, from memory to memory over loopback and TCP. The router is the test."""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from tests.benchmarks.servers import free_port
from tests.checkpoints import TRAINED
from tests.engine.device import ON_CUDA
from tests.engine.run_engine import Answer
from tests.engine.running_server import running_server

needs_nixl = pytest.mark.skipif(
    importlib.util.find_spec("nixl") is None, reason="needs NIXL: pip install --no-deps nixl nixl-cu12"
)

_TO_PREFILL = {
    **{"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None},
    **{"remote_host": None, "remote_port": None},
}


@contextlib.contextmanager
def serving(
    model: pathlib.Path,
    folder: pathlib.Path,
    scaling: Mapping[str, Any],
    role: str,
    engine: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> Iterator[httpx.Client]:
    """A server that gives keys to others, or takes theirs."""
    folder.mkdir()
    settings = {
        **{"model": str(model), "served_model_name": "tiny", "scaling": scaling, "max_model_len": 4 * TRAINED},
        "engine": {**engine, "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": role}},
    }
    if "scales" in scaling:
        del settings["max_model_len"]
    network = {
        **{"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())},
        **({} if ON_CUDA else {"UCX_TLS": "tcp,self,sm", "UCX_NET_DEVICES": "lo", "OMP_NUM_THREADS": "1"}),
    }
    log = folder / "server.log"
    with (
        running_server(folder, settings, {**network, **(environment or {})}, imported=True, log=log) as address,
        httpx.Client(base_url=address, timeout=300) as client,
    ):
        yield client


def asked(
    client: httpx.Client, prompt: list[int], max_tokens: int, params: dict[str, Any] | None, **more: Any
) -> httpx.Response:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    body |= {"logprobs": 0, "return_token_ids": True, "kv_transfer_params": params}
    return client.post("/v1/completions", json=body | more)


def answer_of(response: httpx.Response) -> Answer:
    said = response.raise_for_status().json()
    [choice] = said["choices"]
    posenc = said["kv_transfer_params"]["posenc"]
    return Answer(choice["token_ids"], choice["logprobs"]["token_logprobs"], 0, posenc)


def prefilled(client: httpx.Client, prompt: list[int]) -> dict[str, Any]:
    """What a server that has prefilled a prompt says of where its keys are."""
    params: dict[str, Any] = asked(client, prompt, 1, _TO_PREFILL).raise_for_status().json()["kv_transfer_params"]
    assert params["remote_block_ids"]
    return params
