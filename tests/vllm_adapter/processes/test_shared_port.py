"""The port of several API servers is closed by the last of them that ends, also for the parent, and not before."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from posenc_runtime.vllm_adapter.processes.child_processes import closed_by_the_last

ENDED = 2**31 - 1  # vLLM's number for a server that takes no connections


@pytest.fixture
def parents() -> Iterator[socket.socket]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


def is_open(parents: socket.socket) -> bool:
    with socket.socket() as client:
        return client.connect_ex(parents.getsockname()) == 0


def test_the_last_server_closes_the_port(parents: socket.socket) -> None:
    loads = [3, ENDED]
    with parents.dup() as own, closed_by_the_last(own, {"api_server_loads": loads}):
        loads[0] = ENDED
        own.close()  # as vLLM does before its server ends
        assert is_open(parents)
    assert not is_open(parents)


def test_a_server_that_ends_while_another_serves_leaves_the_port_open(parents: socket.socket) -> None:
    with closed_by_the_last(parents, {"api_server_loads": [ENDED, 0]}):
        pass
    assert is_open(parents)


def test_two_that_end_at_once_close_it_together(parents: socket.socket) -> None:
    config = {"api_server_loads": [ENDED, ENDED]}
    with closed_by_the_last(parents, config), closed_by_the_last(parents, config):
        pass
    assert not is_open(parents)


def test_a_port_whose_servers_vllm_does_not_count_stays_open(parents: socket.socket) -> None:
    with closed_by_the_last(parents, {}):
        pass
    assert is_open(parents)
