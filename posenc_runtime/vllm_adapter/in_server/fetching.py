"""Nothing is fetched for a client, unless the operator names the domain or the folder that it may be fetched from."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

_EVERY_DOMAIN = "*"
_INSTEAD = "send the content itself, as a data: URL"


def refuse_fetching() -> None:
    """Refuse URLs in requests, but for those of ``allowed_media_domains`` and below ``allowed_local_media_path``.

    vLLM fetches from every domain where none is named. It also follows redirects, to any domain: unless the
    environment says otherwise, they are not followed. All that vLLM fetches for a client goes through its media
    connector. vLLM answers with status 400 when we refuse.
    """
    os.environ.setdefault("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")
    for (module, owner, name), replace in WRAPPED.items():
        connector = getattr(importlib.import_module(module), owner)
        setattr(connector, name, replace(inspect.unwrap(getattr(connector, name))))


def _only_named_domains(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def check(connector: Any, url_spec: Any) -> None:
        allowed = connector.allowed_media_domains
        if _EVERY_DOMAIN not in allowed and url_spec.hostname not in allowed:
            raise ValueError(
                "a URL must be of a domain that this server's setting allowed_media_domains names, got "
                f"{url_spec.hostname!r}: {_INSTEAD}"
            )

    return check


def _only_named_folder(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def load(connector: Any, *args: Any, **kwargs: Any) -> Any:
        if connector.allowed_local_media_path is None:
            raise ValueError(
                f"a file: URL needs this server's setting allowed_local_media_path, which names no folder: {_INSTEAD}"
            )
        return stock(connector, *args, **kwargs)

    return load


_CONNECTOR = ("vllm.multimodal.media.connector", "MediaConnector")

# vLLM's methods that we wrap, by module, class and name, each with the function that wraps it.
WRAPPED: Mapping[tuple[str, str, str], Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    (*_CONNECTOR, "_assert_url_in_allowed_media_domains"): _only_named_domains,
    (*_CONNECTOR, "_load_file_url"): _only_named_folder,
}
