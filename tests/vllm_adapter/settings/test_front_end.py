"""The section ``access``: what it takes, and how it travels to the API server."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from pydantic import ValidationError

from posenc_runtime.vllm_adapter.settings.addresses import Address, is_address
from posenc_runtime.vllm_adapter.settings.api_keys import refuse_unreadable
from posenc_runtime.vllm_adapter.settings.front_end import AccessSettings, FrontEndSettings
from posenc_runtime.vllm_adapter.settings.section import SettingRefused


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9000", ("127.0.0.1", 9000)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert is_address(text) and Address.of(text) == address


@pytest.mark.parametrize(
    "text", ["9000", ":9000", "::1:9000", "host:0", "host:65536", "host:", "http://h:1", "h:1/x", "key"]
)
def test_nothing_else_is_an_address(text: str) -> None:
    assert not is_address(text)


@pytest.mark.parametrize(
    ("host", "is_it"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("ops", False)],
)
def test_an_address_is_of_this_machine_if_others_cannot_reach_it(host: str, is_it: bool) -> None:
    assert Address(host, 1).is_of_this_machine is is_it


@pytest.mark.parametrize(
    ("access", "rule"),
    [
        ({"metrics": "closed"}, "metrics must be key, open, off, or an address such as 127.0.0.1:9000, got 'closed'"),
        (
            {"administration": "open"},
            "administration must be key, off, or an address such as 127.0.0.1:9000, got 'open'",
        ),
        ({"administration": "key"}, "administrators must name the keys that may administer"),
        ({"administration": "0.0.0.0:9000"}, "administrators must name the keys that may administer"),
        ({"routes": {"/x": "secret"}}, "'open', 'inference', 'metrics' or 'administration'"),
        ({"keys_file": ""}, "at least 1 character"),
        ({"keys": ["secret"]}, "Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_meant_is_refused(access: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(rule)):
        AccessSettings.model_validate(access)


def test_a_section_travels_as_it_was_written_and_defaults_do_not_travel() -> None:
    written = {"keys_file": "/run/keys", "administration": False, "metrics": "127.0.0.1:9000", "routes": {"/x": "open"}}
    settings = FrontEndSettings.model_validate({"access": written})
    carried = settings.to_additional_config()
    assert carried == {"posenc_access": written | {"administration": "off"}}
    assert FrontEndSettings.of_additional_config(carried | {"other": 1}) == settings
    assert FrontEndSettings().to_additional_config() == {}


def test_keys_that_cannot_be_read_are_refused_before_an_engine_starts(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "keys"
    with pytest.raises(SettingRefused, match=rf"access.keys_file: {file}: must be a file that can be read"):
        refuse_unreadable(AccessSettings(keys_file=str(file)), {})
    with pytest.raises(SettingRefused, match="POSENC_API_KEYS: must have at least one key, got none"):
        refuse_unreadable(AccessSettings(), {"POSENC_API_KEYS": ""})
    file.write_text("alice: secret")
    refuse_unreadable(AccessSettings(keys_file=str(file)), {"POSENC_API_KEYS": "bob: other"})
