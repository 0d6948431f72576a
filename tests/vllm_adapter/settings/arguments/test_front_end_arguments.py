"""What the server would look at only when its engine has started."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.settings.arguments.engine_args import serve_arguments
from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused

# Of nobody: made for this test, by itself.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBPjCB8aADAgECAhRCgO5tkuCVxClvrxwxmSsy7jbDaDAFBgMrZXAwFDESMBAG
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMzIzNTMxNFoYDzIxMjYxMDMwMjM1MzE0
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwKjAFBgMrZXADIQBeZCeRv4u/WsFOHlHB
a8U2JRskzWVjMZYWynE6ZpFtFqNTMFEwHQYDVR0OBBYEFJV4SemiHLUNF4FAs8B/
XwW0fn9gMB8GA1UdIwQYMBaAFJV4SemiHLUNF4FAs8B/XwW0fn9gMA8GA1UdEwEB
/wQFMAMBAf8wBQYDK2VwA0EAH/LFl/BDT89yknddR3VjcxcfwY5xaxN2xHBtXwoE
9ilz5BnqNwVnbxc7yf/aWM53ScXniit0vjtXsIPT2G0YCQ==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAwQroCpbX7WDwmCeSktlQ8Rs+sfi5LjJXhI5biBOXQ7
-----END PRIVATE KEY-----
"""
NOT_CALLABLE = "a name of this module that is no middleware"


async def middleware(request: object, call_next: object) -> None:
    """What a user's may look like."""


def parsed(engine: dict[str, Any] | None = None, **http: Any) -> argparse.Namespace:
    return serve_arguments(
        model="some/model", served_model_name=None, rope_type="default", engine=engine or {}, http=http
    )


def refusal(**http: Any) -> str:
    with pytest.raises(ArgumentRefused) as caught:
        parsed(**http)
    return str(caught.value)


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> dict[str, str]:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    return {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}


def test_a_certificate_its_key_and_authorities_that_can_be_read_are_accepted(pair: dict[str, str]) -> None:
    args = parsed(**pair, ssl_ca_certs=pair["ssl_certfile"])
    assert (args.ssl_certfile, args.ssl_keyfile) == (pair["ssl_certfile"], pair["ssl_keyfile"])


def test_a_key_without_a_certificate_is_refused(pair: dict[str, str]) -> None:
    key = pair["ssl_keyfile"]
    assert refusal(ssl_keyfile=key) == (
        f"server.ssl_certfile: must be given with server.ssl_keyfile, got only server.ssl_keyfile {key!r}"
    )


@pytest.mark.parametrize("setting", ["ssl_certfile", "ssl_keyfile"])
@pytest.mark.parametrize(("text", "why"), [(None, "No such file or directory"), ("-", "PEM")], ids=["none", "other"])
def test_a_certificate_and_a_key_that_cannot_be_read_are_refused(
    text: str | None, why: str, setting: str, pair: dict[str, str]
) -> None:
    file = pathlib.Path(pair[setting])
    file.unlink()
    if text is not None:
        file.write_text(text)
    refused = refusal(**pair)
    assert refused.startswith(
        "server.ssl_certfile, server.ssl_keyfile: must be files with a certificate and its private key, got "
    )
    assert repr(str(file)) in refused and why in refused


def test_authorities_that_cannot_be_read_are_refused(pair: dict[str, str]) -> None:
    assert refusal(**pair, ssl_ca_certs="/nowhere.pem") == (
        "server.ssl_ca_certs: must be a file of certificates, got '/nowhere.pem': No such file or directory"
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere.at_all", "No module named 'nowhere'"),
        ("starlette.middleware.gzip.Gzip", "has no attribute 'Gzip'"),
        ("gzip", "Empty module name"),
        (f"{__name__}.NOT_CALLABLE", "it is neither"),
    ],
    ids=["no module", "no such name", "no module's name", "a text"],
)
def test_middleware_that_cannot_be_imported_is_refused(name: str, why: str) -> None:
    refused = refusal(middleware=[name])
    assert refused.startswith("server.middleware: must name classes or coroutine functions, each as module.name")
    assert f"got {name!r}" in refused and why in refused


def test_middleware_may_be_a_class_or_a_coroutine_function() -> None:
    names = ["starlette.middleware.gzip.GZipMiddleware", f"{__name__}.middleware"]
    assert parsed(middleware=names).middleware == names


def test_lora_modules_are_refused_where_lora_is_not_enabled() -> None:
    modules = [{"name": "a", "path": "/b", "base_model_name": "c"}]
    refused = refusal(lora_modules=modules)
    assert refused.startswith("server.lora_modules: must be left out where engine.enable_lora is false, got a: set")
    assert parsed({"enable_lora": True}, lora_modules=modules).lora_modules[0].name == "a"


def test_a_parser_that_nobody_knows_is_refused() -> None:
    refused = refusal(tool_call_parser="foo", enable_auto_tool_choice=True)
    assert refused.startswith("server.tool_call_parser: must be one of ") and refused.endswith(", got 'foo'")
