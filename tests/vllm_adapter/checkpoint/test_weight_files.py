"""Files of weights that are missing or damaged are found before an engine starts."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import save_file

from posenc_runtime.vllm_adapter.checkpoint.weight_files import DamagedWeights, refuse_damaged

NAME = "model.safetensors"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    save_file({"a": torch.zeros(100), "b": torch.zeros(7, dtype=torch.bfloat16)}, tmp_path / NAME, {"format": "pt"})
    return tmp_path


def cut(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def cut_in_the_header(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[:40])


def overwrite_the_header(file: pathlib.Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:10] + b"?" * 20 + whole[30:])


def overwrite_the_length(file: pathlib.Path) -> None:
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])


def append(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def empty(file: pathlib.Path) -> None:
    file.write_bytes(b"")


def fetch_a_pointer(file: pathlib.Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")


def remove(file: pathlib.Path) -> None:
    file.unlink()


def rename_a_shard(file: pathlib.Path) -> None:
    index = {"weight_map": {"a": NAME, "b": "model-00002-of-00002.safetensors"}}
    (file.parent / f"{NAME}.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, r"must have \d+ bytes, as its header says, got \d+: download this file again"),
        (append, r"must have \d+ bytes, as its header says, got \d+: download"),
        (cut_in_the_header, "has no header of safetensors, and 40 bytes in all: download"),
        (overwrite_the_header, "has a header that is not one of safetensors: download"),
        (overwrite_the_length, r"has no header of safetensors, and \d+ bytes in all"),
        (empty, "has no header of safetensors, and 0 bytes in all"),
        (fetch_a_pointer, "is a pointer of Git LFS, not the weights"),
        (remove, r"has no weights: there is no file \*\.safetensors"),
        (rename_a_shard, "lacks model-00002-of-00002.safetensors, which model.safetensors.index.json names"),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    damage: Callable[[pathlib.Path], None], said: str, folder: pathlib.Path
) -> None:
    damage(folder / NAME)
    with pytest.raises(DamagedWeights, match=said):
        refuse_damaged(folder, {})


def test_whole_files_and_those_of_other_loaders_are_left_to_vllm(folder: pathlib.Path) -> None:
    refuse_damaged(folder, {})
    empty(folder / NAME)
    refuse_damaged(folder, {"load_format": "dummy"})
    remove(folder / NAME)
    (folder / "pytorch_model.bin").touch()
    refuse_damaged(folder, {"load_format": "auto"})


def test_where_mistrals_own_files_are_the_others_may_be_missing(folder: pathlib.Path) -> None:
    rename_a_shard(folder / NAME)
    (folder / "consolidated.safetensors").write_bytes((folder / NAME).read_bytes())
    refuse_damaged(folder, {})
    empty(folder / NAME)
    refuse_damaged(folder, {"load_format": "mistral"})
    with pytest.raises(DamagedWeights, match=r"consolidated\.safetensors has no header"):
        empty(folder / "consolidated.safetensors")
        refuse_damaged(folder, {})
