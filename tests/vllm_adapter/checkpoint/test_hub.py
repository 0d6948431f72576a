"""Asking a hub for a checkpoint's configuration, which may be cached, refused, late or out of reach."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Iterator

import huggingface_hub
import pytest
from huggingface_hub.utils import are_progress_bars_disabled

from posenc_runtime.vllm_adapter.checkpoint import hub
from posenc_runtime.vllm_adapter.checkpoint.hub import Found, UnreadableCheckpoint, at_hand
from tests.local_hub import COMMIT, LocalHub, address_of_nobody, local_hub, silent_hub

NAME = "some/model"
OUT_OF_REACH = "the configuration of 'some/model' cannot be read: the hub {} is out of reach: {}"


@pytest.fixture
def at(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the hub's address; the cache is empty, and a second is as long as a hub is waited for."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_SECONDS", 1)
    monkeypatch.setattr(hub, "_PAUSE_SECONDS", 0.05)
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)

    def put(endpoint: str) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )

    return put


@pytest.fixture
def there(at: Callable[[str], None]) -> Iterator[LocalHub]:
    with local_hub() as running:
        at(running.endpoint)
        running.put(NAME, "config.json", b"{}")
        yield running


def refused(engine: dict[str, object] | None = None, name: str = NAME) -> UnreadableCheckpoint:
    with pytest.raises(UnreadableCheckpoint) as raised:
        at_hand(name, engine or {})
    return raised.value


def test_a_configuration_is_fetched_at_the_given_revision_with_the_given_token(
    there: LocalHub, capfd: pytest.CaptureFixture[str]
) -> None:
    there.put(NAME, "config.json", b'{"a": 1}', revision="tag")
    folder = pathlib.Path(at_hand(NAME, {"revision": "tag", "hf_token": "secret"}).place)
    assert (folder / "config.json").read_text() == '{"a": 1}'
    assert {(path, token) for _, path, token in there.asked} == {
        ("/some/model/resolve/tag/config.json", "Bearer secret")
    }
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "refusal", [(401, ""), (401, "RepoNotFound"), (403, "GatedRepo"), (404, "EntryNotFound"), (404, "RevisionNotFound")]
)
def test_what_a_hub_refuses_is_told_as_huggingface_hub_tells_it(
    refusal: tuple[int, str], there: LocalHub, capfd: pytest.CaptureFixture[str]
) -> None:
    there.refusals = [refusal]
    with pytest.raises(Exception) as told:
        huggingface_hub.hf_hub_download(NAME, "config.json")
    error = refused()
    said = " ".join(str(told.value).split())
    assert said.split(" (Request ID")[0] in str(error) and "out of reach" not in str(error)
    assert error.advice == "check the name, HF_TOKEN or engine.hf_token, and the network"
    assert capfd.readouterr() == ("", "")


def test_a_name_that_no_hub_can_have_is_told_without_asking(there: LocalHub) -> None:
    assert "Repo id must be in the form" in str(refused(name="models/of/mine"))
    assert not there.asked


def test_a_hub_that_takes_no_connection_is_out_of_reach(
    at: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    at(address := address_of_nobody())
    error = refused()
    assert str(error) == OUT_OF_REACH.format(address, "[Errno 111] Connection refused")
    assert error.advice == "check the network, proxies and HF_ENDPOINT"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "dripping"])
def test_a_hub_that_takes_connections_and_never_ends_its_answer_is_out_of_reach(
    drips: bool, at: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    with silent_hub(drips=drips) as address:
        at(address)
        error = refused()
    assert str(error) == OUT_OF_REACH.format(address, "no answer within 1 s")
    assert "set HF_HUB_ETAG_TIMEOUT to more seconds" in error.advice
    assert capfd.readouterr() == ("", "")


def test_a_hub_is_waited_for_as_long_as_somebody_asks_for(
    at: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "2")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_ETAG_TIMEOUT", 2)
    with silent_hub() as address:
        at(address)
        assert "no answer within 2 s" in str(refused())


def test_a_hub_that_is_busy_is_asked_again(there: LocalHub) -> None:
    there.refusals = [(503, ""), (429, ""), (200, "")]
    assert pathlib.Path(at_hand(NAME, {}).place).name == COMMIT
    assert len(there.asked) > 3


def test_a_hub_that_stays_busy_is_told_as_what_it_answers(there: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_SECONDS", 3)  # for four tries also where the machine is busy
    there.refusals = [(503, "")]
    error = str(refused())
    assert "503 Service Unavailable" in error and "out of reach" not in error
    assert len(there.asked) > 3


def test_what_is_cached_is_served_without_a_hub(there: LocalHub, at: Callable[[str], None]) -> None:
    folder = at_hand(NAME, {}).place
    there.refusals = [(503, "")]
    assert at_hand(NAME, {}) == Found(folder)
    there.refusals = [(401, "RepoNotFound")]
    assert at_hand(NAME, {}) == Found(folder)
    at(address := address_of_nobody())
    reason = f"the hub {address} is out of reach: [Errno 111] Connection refused"
    assert at_hand(NAME, {}) == Found(folder, reason)
    assert "out of reach" in str(refused({"revision": "another"}))


def test_a_commit_that_is_cached_is_not_asked_for(there: LocalHub) -> None:
    there.put(NAME, "config.json", b"{}", revision=COMMIT)
    folder = at_hand(NAME, {"revision": COMMIT}).place
    before = len(there.asked)
    assert at_hand(NAME, {"revision": COMMIT}) == Found(folder) and len(there.asked) == before


def test_what_a_hub_has_no_more_is_not_taken_from_the_cache(there: LocalHub) -> None:
    at_hand(NAME, {})
    there.files.clear()
    assert "404" in str(refused())


def test_no_hub_is_asked_where_the_environment_says_so(there: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    error = refused()
    assert "posenc asks no hub, because HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set" in str(error)
    assert error.advice == "download the model first, or unset the variable"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    folder = at_hand(NAME, {}).place
    before = len(there.asked)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert at_hand(NAME, {}) == Found(folder) and len(there.asked) == before


def test_another_hubs_models_object_stores_and_folders_are_left_to_vllm(
    there: LocalHub, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in (str(tmp_path), "s3://bucket/model"):
        assert at_hand(source, {}) == Found(source)
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "True")
    assert at_hand(NAME, {}) == Found(NAME)
    assert not there.asked


@pytest.mark.parametrize("engine", [{"trust_remote_code": True}, {"config_format": "mistral"}])
def test_what_vllm_reads_in_its_own_way_only_needs_a_hub_that_answers(
    engine: dict[str, object], there: LocalHub, at: Callable[[str], None]
) -> None:
    there.files.clear()
    assert at_hand(NAME, engine) == Found(NAME)
    at(address_of_nobody())
    assert "out of reach" in str(refused(engine))
    at(there.endpoint)
    there.put(NAME, "configuration.of-its-own", b"{}")
    huggingface_hub.hf_hub_download(NAME, "configuration.of-its-own")
    at(address_of_nobody())
    found = at_hand(NAME, engine)
    assert found.place == NAME and "out of reach" in found.out_of_reach
    assert at_hand("no/name/of-a-hub", engine) == Found("no/name/of-a-hub")


def test_huggingface_hub_neither_warns_nor_shows_progress_while_it_is_asked(
    there: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_quiet() -> bool:
        logger = logging.getLogger("huggingface_hub.file_download")
        return not logger.isEnabledFor(logging.WARNING) and are_progress_bars_disabled()

    stock, quiet = huggingface_hub.hf_hub_download, []
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda *args, **named: quiet.append(is_quiet()) or stock(*args, **named)
    )
    at_hand(NAME, {})
    assert quiet == [True] and not is_quiet()
