"""What the limits know of an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.contract.names import CONNECTOR
from posenc_runtime.vllm_adapter.in_server.engine_state import capacity_of


def engine(connector: str | None = CONNECTOR, encoder: Any = None) -> Any:
    transfer = None if connector is None else SimpleNamespace(kv_connector=connector)
    return SimpleNamespace(
        vllm_config=SimpleNamespace(
            kv_transfer_config=transfer,
            ec_transfer_config=encoder,
            scheduler_config=SimpleNamespace(max_num_seqs=8),
            parallel_config=SimpleNamespace(data_parallel_size=2),
        ),
        output_processor=SimpleNamespace(request_states={"a": 1, "b": 2, "c": 3}),
    )


def test_an_engine_runs_as_many_sequences_as_its_parallel_engines_together() -> None:
    found = capacity_of(engine())
    assert (found.running, found.held) == (16, 3)


@pytest.mark.parametrize(
    ("connector", "encoder", "takes"),
    [
        (CONNECTOR, None, set()),
        (None, None, set()),
        ("OffloadingConnector", None, set()),
        ("LMCacheMPConnector", None, set()),
        ("NixlConnector", None, {"kv_transfer_params"}),
        (CONNECTOR, object(), {"ec_transfer_params"}),
    ],
)
def test_parameters_of_a_transfer_are_for_connectors_that_need_them_of_clients(
    connector: str | None, encoder: Any, takes: set[str]
) -> None:
    assert capacity_of(engine(connector, encoder)).transfer_params == takes


def test_before_the_engine_runs_nothing_is_held() -> None:
    assert capacity_of(None).held == 0 and not capacity_of(None).transfer_params
