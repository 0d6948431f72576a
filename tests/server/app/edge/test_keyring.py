"""The keys of a server: of the environment, of a file that changes, and those that a request shows."""

from __future__ import annotations

import hashlib
import os
import pathlib

import pytest

from posenc_runtime.vllm_adapter.settings.api_keys import ApiKey, KeysRefused, in_environment, in_file
from server.app.edge.keyring import Keyring, keys_shown


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "keys"
    path.write_text("alice: first-key\n")
    return path


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_file_has_keys_with_names_without_and_as_hashes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "keys"
    path.write_text(
        f"# ours\n\nalice: one\nbob:two\n  three  \ncarol: sha256:{sha256('four')}\nsha256:{sha256('five')}\n"
    )
    ring = Keyring(file=path)
    names = [ring.name_of([text.encode()]) for text in ("one", "two", "three", "four", "five")]
    assert names == ["alice", "bob", f"key-{sha256('three')[:8]}", "carol", f"key-{sha256('five')[:8]}"]
    assert ring.name_of([b"# ours"]) is None and ring.name_of([sha256("four").encode()]) is None


def test_the_environment_has_keys_with_commas_or_on_lines() -> None:
    keys = in_environment({"POSENC_API_KEYS": "alice: one, two\nbob: three"})
    assert [key.name for key in keys] == ["alice", f"key-{sha256('two')[:8]}", "bob"]
    assert in_environment({}) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "must have at least one key"),
        ("# none\n", "must have at least one key"),
        ("alice: top secret\n", "the key in line 1 must be printable ASCII without spaces"),
        ("one\nalice: gehe\u00efm\n", "the key in line 2 must be printable ASCII"),
        ("alice: very:secret\n", "the key in line 1 must be printable ASCII without spaces, commas and colons"),
        ("alice and bob: secret\n", "the name in line 1 must be 1 to 64 letters"),
        ("alice:\n", "the key in line 1 must be"),
        ("sha256:abc\n", "the hash in line 1 must be sha256: and 64 hexadecimal digits"),
        ("alice: secret\nbob: secret\n", "line 2 must have a key of its own, got the key of alice again"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused_without_showing_keys(
    tmp_path: pathlib.Path, text: str, rule: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(KeysRefused) as refused:
        in_file(path)
    assert rule in str(refused.value) and "secret" not in str(refused.value)


def test_a_missing_or_too_large_file_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(KeysRefused, match="must be a file that can be read: No such file"):
        in_file(tmp_path / "none")
    (tmp_path / "large").write_text("k" * (2**20 + 1))
    with pytest.raises(KeysRefused, match="must have at most 1048576 bytes"):
        in_file(tmp_path / "large")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(KeysRefused, match="must be a text in UTF-8"):
        in_file(tmp_path / "bytes")


def test_a_changed_file_is_read_anew_after_a_second(file: pathlib.Path, clock: Clock) -> None:
    ring = Keyring(file=file, now=clock)
    file.write_text("bob: second-key-longer\n")
    assert ring.name_of([b"second-key-longer"]) is None  # nobody has looked yet
    clock.seconds = 1.0
    assert ring.name_of([b"second-key-longer"]) == "bob" and ring.name_of([b"first-key"]) is None


def test_a_link_that_is_replaced_as_kubernetes_does_is_followed(tmp_path: pathlib.Path, clock: Clock) -> None:
    for version, key in (("v1", "old-key"), ("v2", "new-key")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys").write_text(f"alice: {key}\n")
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "keys").symlink_to("..data/keys")
    ring = Keyring(file=tmp_path / "keys", now=clock)
    (tmp_path / "..data_tmp").symlink_to("v2")
    os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
    clock.seconds = 1.0
    assert ring.name_of([b"new-key"]) == "alice" and ring.name_of([b"old-key"]) is None


@pytest.mark.parametrize("broken", ["", "no key at all\n", None], ids=["emptied", "no keys", "removed"])
def test_a_broken_new_file_keeps_the_old_keys_and_is_logged_once(
    file: pathlib.Path, clock: Clock, said: list[str], broken: str | None
) -> None:
    ring = Keyring(file=file, now=clock)
    file.unlink() if broken is None else file.write_text(broken)
    for clock.seconds in (1.0, 2.0, 3.0):
        assert ring.name_of([b"first-key"]) == "alice"
    assert len(said) == 1 and "the keys read before stay valid" in said[0]
    assert "first-key" not in said[0] and "no key at all" not in said[0]
    file.write_text("bob: mended\n")
    clock.seconds = 4.0
    assert ring.name_of([b"mended"]) == "bob" and ring.name_of([b"first-key"]) is None


def test_keys_of_the_environment_stay_when_the_file_changes(file: pathlib.Path, clock: Clock) -> None:
    ring = Keyring([ApiKey.of("staying", "env")], file, clock)
    assert ring.name_of([b"staying"]) == "env" and ring.name_of([b"first-key"]) == "alice"


def test_a_ring_without_keys_is_false_and_knows_nobody() -> None:
    assert not Keyring() and Keyring([ApiKey.of("x")])
    assert Keyring().name_of([b""]) is None


def test_a_key_of_any_length_is_looked_at_but_not_an_endless_one() -> None:
    ring = Keyring([ApiKey.of("k" * 1024, "long"), ApiKey.of("k" * 1025, "longer")])
    assert ring.name_of([b"k" * 1024]) == "long" and ring.name_of([b"k" * 1025]) is None


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ([(b"authorization", b"Bearer abc")], [b"abc"]),
        ([(b"authorization", b"bearer   abc ")], [b"abc"]),
        ([(b"x-api-key", b"abc")], [b"abc"]),
        ([(b"x-api-key", b"def"), (b"authorization", b"Bearer abc")], [b"abc", b"def"]),
        ([(b"authorization", b"Bearer abc"), (b"authorization", b"Bearer def")], [b"abc"]),
        ([(b"authorization", b"Basic YWJj")], []),
        ([(b"authorization", b"Bearer")], []),
        ([(b"authorization", b"abc")], []),
        ([(b"authorization", b"Bearerabc")], []),
        ([(b"authorization", b"")], []),
        ([(b"cookie", b"Authorization=Bearer abc")], []),
        ([], []),
    ],
)
def test_a_request_shows_keys_in_two_headers(headers: list[tuple[bytes, bytes]], shown: list[bytes]) -> None:
    assert keys_shown(headers) == shown
