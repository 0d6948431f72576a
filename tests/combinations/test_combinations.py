"""The tables of ``docs/limits.md`` say what start-up says, and each row that is served names a test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from vllm.config.cache import CacheDType
from vllm.config.speculative import SpeculativeMethod
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.engine.arg_utils import EngineArgs

from posenc_runtime.vllm_adapter.contract.names import CONNECTOR
from tests.combinations.feature import Feature, given
from tests.combinations.features import FEATURES, GROUPS
from tests.combinations.page import PAGE, TABLES, Contradiction, tables_with_scales, written
from tests.combinations.shown import CROSSING


@pytest.mark.parametrize("name", TABLES)
def test_the_page_says_what_start_up_says(name: str) -> None:
    """``make combinations`` writes it."""
    assert written(name, PAGE.read_text(encoding="utf-8")) == TABLES[name](GROUPS)


ARGUMENTS = [asked.arguments for feature in FEATURES for asked in feature.asked]


def test_the_tables_are_about_arguments_of_vllm() -> None:
    assert {name for arguments in ARGUMENTS for name in arguments} <= {
        field.name for field in dataclasses.fields(EngineArgs)
    }


def values(annotation: Any) -> Iterator[str]:
    """The strings of a ``Literal`` that may be made of others."""
    for each in get_args(annotation):
        yield from [each] if isinstance(each, str) else values(each)


def test_every_type_of_cache_has_a_row() -> None:
    assert {arguments.get("kv_cache_dtype") for arguments in ARGUMENTS} >= set(values(CacheDType))


def test_every_method_that_drafts_has_a_row() -> None:
    asked = {(arguments.get("speculative_config") or {}).get("method") for arguments in ARGUMENTS}
    assert asked >= set(values(SpeculativeMethod))


@pytest.mark.parametrize("table", ["with_scales", "at_read_time"])
def test_every_connector_has_a_row(table: str) -> None:
    listed = [asked.arguments for feature in FEATURES if getattr(feature, table) for asked in feature.asked]
    asked = {(arguments.get("kv_transfer_config") or {}).get("kv_connector") for arguments in listed}
    assert asked >= set(KVConnectorFactory._registry) - {CONNECTOR}


@pytest.mark.parametrize(
    ("feature", "rule"),
    [
        (Feature("served"), "a row must name tests where it is served"),
        (Feature("refused", (given(enable_dbo=True),), shown=(CROSSING,)), "and none where it is refused"),
        (Feature("renamed", shown=(f"{CROSSING}_once",)), r"tests/engine/test_crossing\.py must have a test"),
        (Feature("both", (given(), given(enable_dbo=True))), "must say the same of all that 'both' stands for"),
        (Feature("list", (given(kv_cache_dtype="nvfp4"),), shown=(CROSSING,)), "must say what to do instead"),
    ],
    ids=lambda value: value.name if isinstance(value, Feature) else "",
)
def test_a_row_that_says_too_little_is_not_written(feature: Feature, rule: str) -> None:
    with pytest.raises(Contradiction, match=rule):
        tables_with_scales({"one": [feature]})
