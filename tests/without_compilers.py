"""The programs of this machine but its compilers."""

from __future__ import annotations

import os
import pathlib

COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++")


def link_programs(folder: pathlib.Path) -> None:
    """Fill an empty folder, which is then a PATH, with links to all programs of the PATH but compilers."""
    for place in os.environ["PATH"].split(os.pathsep):
        for program in pathlib.Path(place).glob("*"):
            is_compiler = program.name.startswith(("gcc", "g++", "clang", "x86_64-linux-gnu-g", "cpp", "c++"))
            if not is_compiler and program.name not in COMPILERS and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
