"""Compiles the C++ kernels for this machine with torch's extension mechanism, which keeps them for the next start."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import pathlib
import platform
import shlex
import shutil

import torch

_FOLDER = pathlib.Path(__file__).parent
_SOURCES = ("bias.cpp", "cope.cpp", "read_time.cpp", "store.cpp", "instructions.cpp")
# No flag may let the compiler reorder sums: the exponential rounds a number by adding a constant and subtracting it.
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-std=c++17")

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class NoCompiler(RuntimeError):
    """The kernels cannot be compiled here."""


@functools.cache
def kernels() -> ctypes.CDLL:
    """The compiled kernels. The first call on a machine takes some seconds.

    Raises:
        NoCompiler: when a program is missing; the message names it and how to install it.
    """
    missing = [program for program in ("c++", "ninja") if shutil.which(program) is None]
    if missing:
        raise NoCompiler(
            "a C++ compiler and ninja must be on PATH, because posenc's attention kernels are compiled on this "
            f"machine, got no {' and no '.join(missing)}: install a C++ compiler (Debian: apt install g++) and ninja "
            "(pip install ninja)"
        )
    # Imported here because the import takes a second, and only attention on the CPU needs it.
    from torch.utils import cpp_extension

    # torch gives the linker's folder to a shell without quotes, and an environment may lie in a folder with spaces.
    folder = cpp_extension.TORCH_LIB_PATH
    cpp_extension.TORCH_LIB_PATH = shlex.quote(folder)
    try:
        path = cpp_extension.load(
            name=f"posenc_cpu_{_fingerprint()}",
            sources=[str(_FOLDER / source) for source in _SOURCES],
            extra_cflags=list(_FLAGS),
            is_python_module=False,
        )
    finally:
        cpp_extension.TORCH_LIB_PATH = folder
    return ctypes.CDLL(path)


def instructions() -> str:
    """The name of the instruction set that the kernels were compiled for, for people to read.

    Raises:
        NoCompiler: when the kernels cannot be compiled here.
    """
    ask = kernels().posenc_instructions
    ask.restype = ctypes.c_char_p
    name: bytes = ask()
    return name.decode()


@functools.cache
def may_use_tiles() -> bool:
    """Whether the processor has AMX, and Linux lets this process use its tiles. Linux has to be asked once."""
    return bool(torch.cpu._init_amx())


def _fingerprint() -> str:
    """A hash of all that decides the machine code, because machines that share a home folder need different builds."""
    digest = hashlib.sha256()
    for file in sorted(_FOLDER.glob("*.[ch]*")):
        digest.update(file.read_bytes())
    digest.update(" ".join(_FLAGS).encode())
    digest.update(f"{platform.machine()} {torch.__version__} {_processor()}".encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return " ".join(sorted({line for line in lines if line.startswith(wanted)}))
