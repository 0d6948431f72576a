"""The C++ kernels are compiled wherever an environment lies."""

from __future__ import annotations

import pathlib

import pytest
from torch.utils import cpp_extension

from posenc_runtime.kernels.cpu import build


@pytest.mark.slow
def test_an_environment_in_a_folder_with_spaces_compiles_the_kernels(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my projects"
    folder.mkdir()
    (folder / "lib").symlink_to(cpp_extension.TORCH_LIB_PATH)
    monkeypatch.setattr(cpp_extension, "TORCH_LIB_PATH", str(folder / "lib"))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "kernels"))
    monkeypatch.setattr(build, "_SOURCES", ("instructions.cpp",))  # the others take half a minute
    assert build.kernels.__wrapped__().posenc_instructions
    assert str(folder / "lib") == cpp_extension.TORCH_LIB_PATH
