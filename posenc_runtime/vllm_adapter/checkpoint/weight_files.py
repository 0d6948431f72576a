"""Looks at the files of a checkpoint's weights before an engine starts to read them: are they all there, and whole?"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

# The loaders of vLLM that read these files; others read what we do not know.
_FORMATS = ("auto", "hf", "safetensors", "mistral")
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.gguf", "*.tensors")
_LENGTH_BYTES = 8  # the length of the header, little-endian, stands before it
_LONGEST_HEADER = 100_000_000  # bytes, as the library safetensors has it
_POINTER = b"version https://git-lfs"


class DamagedWeights(ValueError):
    """A checkpoint's weights cannot be loaded; the message names the file and says what to do."""


def refuse_damaged(folder: pathlib.Path, engine: Mapping[str, Any]) -> None:
    """Check that the files of weights in a folder are there, and that no safetensors file is cut or overwritten.

    Only the beginning of each file is read.

    Args:
        engine: vLLM engine arguments; ``load_format`` is used.

    Raises:
        DamagedWeights: naming the first file that is missing or damaged.
    """
    load_format = str(engine.get("load_format") or "auto")
    if load_format not in _FORMATS:
        return
    # Where Mistral's own files are, vLLM reads them alone.
    own = sorted(folder.glob("consolidated*.safetensors")) if load_format in ("auto", "mistral") else []
    files = own or sorted(folder.glob("*.safetensors"))
    if not files and not _has_other_weights(folder):
        raise DamagedWeights(
            f"{folder} has no weights: there is no file *.safetensors, {', '.join(_OTHER_WEIGHTS)}. Download the whole "
            "checkpoint, or name the folder that has it"
        )
    index = folder / f"{'consolidated' if own else 'model'}.safetensors.index.json"
    if index.is_file():
        files = [folder / name for name in _named_by(index)]
    for file in files:
        if not file.is_file():
            raise DamagedWeights(f"{folder} lacks {file.name}, which {index.name} names: download the checkpoint again")
        if reason := _damage(file):
            raise DamagedWeights(f"{file} {reason}: download this file again")


def _has_other_weights(folder: pathlib.Path) -> bool:
    return any(itertools.chain.from_iterable(folder.glob(pattern) for pattern in _OTHER_WEIGHTS))


def _named_by(index: pathlib.Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedWeights(f"{index} is no index of weights: download this file again") from error


def _damage(file: pathlib.Path) -> str | None:
    """What is wrong with a safetensors file; None where nothing is."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        begin = stream.read(_LENGTH_BYTES)
        length = int.from_bytes(begin, "little")
        if begin + stream.read(len(_POINTER) - _LENGTH_BYTES) == _POINTER:
            return "is a pointer of Git LFS, not the weights (git lfs pull fetches them)"
        if len(begin) < _LENGTH_BYTES or not 2 <= length <= min(_LONGEST_HEADER, size - _LENGTH_BYTES):
            return f"has no header of safetensors, and {size} bytes in all"
        stream.seek(_LENGTH_BYTES)
        try:
            header = json.loads(stream.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return "has a header that is not one of safetensors"
    expected = _LENGTH_BYTES + length + max(ends, default=0)
    return None if size == expected else f"must have {expected} bytes, as its header says, got {size}"
