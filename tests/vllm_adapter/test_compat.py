"""The vLLM that we stand on is the one that is installed."""

from __future__ import annotations

import pytest

from posenc_runtime.vllm_adapter import compat


def test_every_name_that_we_touch_is_where_it_was() -> None:
    compat.verify()
    compat.verify_server()
    compat.verify_cpu_runner()


def test_another_version_is_refused_with_the_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", "0.33.1")
    with pytest.raises(compat.IncompatibleVllm, match=r"needs vLLM 0\.32\.0, found 0\.33\.1: install vllm==0\.32\.0"):
        compat.verify()


def test_a_name_that_went_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.request import Request

    monkeypatch.delattr(Request, "update_block_hashes")
    with pytest.raises(compat.IncompatibleVllm, match=r"lacks .*: vllm\.v1\.request\.Request\.update_block_hashes\."):
        compat.verify()


def test_an_attribute_that_went_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.request import Request

    def emptied(self: object) -> None:
        pass

    monkeypatch.setattr(Request, "__init__", emptied)
    with pytest.raises(compat.IncompatibleVllm, match=r"Request\(\)\.cache_salt; vllm\.v1\.request\.Request\(\)\.bl"):
        compat.verify()


def test_a_parameter_that_went_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    monkeypatch.setattr(KVConnectorBase_V1, "on_new_request", lambda self, arrival: None)
    with pytest.raises(compat.IncompatibleVllm, match=r"KVConnectorBase_V1\.on_new_request\(request\)"):
        compat.verify()
