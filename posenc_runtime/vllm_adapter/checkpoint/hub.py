"""Asks a hub for a checkpoint's configuration, without vLLM, and soon gives up if the hub is out of reach.

huggingface_hub by itself repeats a request that fails, and vLLM calls huggingface_hub again when it has given up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import queue
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

CONFIGURATION = "config.json"
_SECONDS = 5  # for all tries together; a failure that may pass is followed by another try
_PAUSE_SECONDS = 1.0
_PASSING_STATUS = (429, 500, 502, 503, 504)
# Names, not classes: by its release, huggingface_hub uses httpx or httpx2.
_PASSING_ERRORS = {"TimeoutException", "NetworkError", "ProtocolError", "ProxyError"}


class UnreadableCheckpoint(ValueError):
    """The checkpoint's configuration could not be read.

    Attributes:
        advice: what to do about it, in words.
    """

    def __init__(self, source: str, reason: str, advice: str = "") -> None:
        super().__init__(f"the configuration of {source!r} cannot be read: {reason}")
        self.advice = advice or "check the name, HF_TOKEN or engine.hf_token, and the network"


class OutOfReach(UnreadableCheckpoint):
    """A hub takes no connection, or does not answer in time."""

    def __init__(self, source: str, hub: str, reason: str, advice: str) -> None:
        self.said = f"the hub {hub} is out of reach: {reason}"
        super().__init__(source, self.said, advice)


@dataclasses.dataclass(frozen=True)
class Found:
    """Where vLLM is to read a checkpoint's configuration.

    Attributes:
        place: a folder, or the checkpoint's name where vLLM has to ask the hub itself.
        out_of_reach: a message, where the hub is out of reach and the cache is used instead; empty otherwise.
    """

    place: str
    out_of_reach: str = ""


def stay_offline() -> None:
    """Keep this process and its children from asking a hub: vLLM would ask again the hub that is out of reach."""
    from huggingface_hub import constants

    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True


def is_in_object_store(place: str) -> bool:
    """Whether a checkpoint is in an object store. vLLM reads its configuration together with the weights."""
    return "://" in place


def at_hand(source: str, engine: Mapping[str, Any]) -> Found:
    """Where a checkpoint's configuration is: a folder, fetched if need be, or the name itself where vLLM has to ask.

    Args:
        source: a folder, or a name on a hub.
        engine: vLLM engine arguments; those that say where the configuration comes from are used.

    Raises:
        UnreadableCheckpoint: when the hub does not give it, or cannot be reached.
    """
    if pathlib.Path(source).is_dir() or is_in_object_store(source) or _is_for_modelscope():
        return Found(source)
    revision, token = engine.get("revision"), engine.get("hf_token")
    with _quiet():
        if engine.get("trust_remote_code") or engine.get("config_format"):
            return _left_to_vllm(source, revision, token)
        try:
            return _fetched(source, revision, token)
        except UnreadableCheckpoint:
            raise
        except Exception as error:  # a hub's client may raise anything: it cannot be read
            # A hub's message begins with "401 Client Error", and the lines below say what is missing.
            raise UnreadableCheckpoint(source, reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """An error's message, shortened to one line; the name of its class where it has no message."""
    return textwrap.shorten(str(error), 400, placeholder=" ...") or type(error).__name__


def _left_to_vllm(source: str, revision: str | None, token: str | bool | None) -> Found:
    """The name itself, for vLLM to ask for in its own way, if the hub can be reached or the cache has the model."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    failure = None if constants.HF_HUB_OFFLINE else _failure(source, revision, token)
    if not isinstance(failure, OutOfReach):
        return Found(source)
    cached = pathlib.Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=source, repo_type="model"), "snapshots")
    if not cached.is_dir():
        raise failure
    return Found(source, failure.said)


def _fetched(source: str, revision: str | None, token: str | bool | None) -> Found:
    """The folder of huggingface_hub's cache that has the configuration, fetched from the hub if it can be reached."""
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError
    from huggingface_hub.file_download import REGEX_COMMIT_HASH

    file = try_to_load_from_cache(source, CONFIGURATION, revision=revision)
    cached = str(pathlib.Path(file).parent) if isinstance(file, str) else None
    if constants.HF_HUB_OFFLINE and cached is None:
        raise UnreadableCheckpoint(
            source,
            f"it is not in the cache {constants.HF_HUB_CACHE}, and posenc asks no hub, because HF_HUB_OFFLINE or "
            "TRANSFORMERS_OFFLINE is set",
            "download the model first, or unset the variable",
        )
    if cached is not None and (constants.HF_HUB_OFFLINE or REGEX_COMMIT_HASH.fullmatch(revision or "")):
        return Found(cached)
    failure = _failure(source, revision, token)
    if failure is None:
        file = hf_hub_download(source, CONFIGURATION, revision=revision, token=token)
        return Found(str(pathlib.Path(file).parent))
    if cached is not None and not isinstance(failure, EntryNotFoundError | RevisionNotFoundError):
        return Found(cached, failure.said if isinstance(failure, OutOfReach) else "")
    raise failure


def _failure(source: str, revision: str | None, token: str | bool | None) -> Exception | None:
    """Why a hub does not give the configuration; None where it does. Stops waiting after some seconds."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    seconds = constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else _SECONDS
    ends = time.monotonic() + seconds
    said: queue.SimpleQueue[tuple[Exception | None, bool]] = queue.SimpleQueue()

    def ask() -> None:
        failure: Exception | None = None
        is_over = False
        while not is_over:
            try:
                get_hf_file_metadata(hf_hub_url(source, CONFIGURATION, revision=revision), token=token, timeout=seconds)
                failure, is_over = None, True
            except Exception as error:
                failure, is_over = error, not _may_pass(error) or time.monotonic() + _PAUSE_SECONDS > ends
            said.put((failure, is_over))
            if not is_over:
                time.sleep(_PAUSE_SECONDS)

    # Nobody joins this thread: no timeout covers a DNS look-up, or a hub that answers one byte at a time.
    threading.Thread(target=ask, name="posenc-hub", daemon=True).start()
    failure: Exception | None = TimeoutError()
    is_over = False
    with contextlib.suppress(queue.Empty):
        while not is_over:
            failure, is_over = said.get(timeout=max(ends - time.monotonic(), 0))
    is_silent = isinstance(failure, TimeoutError) or "TimeoutException" in _names(failure)
    if not is_silent and not _PASSING_ERRORS & _names(failure):
        return failure  # the hub does answer, for example that it is busy
    advice = "check the network, proxies and HF_ENDPOINT"
    if is_silent:
        return OutOfReach(
            source,
            constants.ENDPOINT,
            f"no answer within {seconds} s",
            f"{advice}, set HF_HUB_ETAG_TIMEOUT to more seconds",
        )
    return OutOfReach(source, constants.ENDPOINT, str(failure), advice)


def _may_pass(error: Exception) -> bool:
    """Whether asking again may help."""
    response = getattr(error, "response", None)
    return bool(_PASSING_ERRORS & _names(error)) or getattr(response, "status_code", None) in _PASSING_STATUS


def _names(error: Exception | None) -> set[str]:
    return {each.__name__ for each in type(error).__mro__}


def _is_for_modelscope() -> bool:
    """Whether vLLM asks ModelScope instead; the environment variable is read as vLLM reads it."""
    return os.environ.get("VLLM_USE_MODELSCOPE", "").strip().lower() in ("1", "true")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings and progress bars of huggingface_hub: our own errors say what matters."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    has_bars = constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not are_progress_bars_disabled()
    if level == logging.WARNING:  # its default; a level that the user chose stays
        logger.setLevel(logging.ERROR)
    if has_bars:
        disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if has_bars:
            enable_progress_bars()
