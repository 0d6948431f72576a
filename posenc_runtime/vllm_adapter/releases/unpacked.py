"""Runs a module of ours with a vLLM whose sources lie in a folder, beside the one that is installed."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile

_ROOT = pathlib.Path(__file__).resolve().parents[3]


def line_of_sources(folder: pathlib.Path, device: str, module: str, *arguments: str, mark: str) -> str:
    """What a module of ours prints in a process of this interpreter that imports the vLLM of a folder.

    Other packages that this vLLM needs come from the environment of the present process.

    Args:
        folder: that contains the package ``vllm``.
        device: ``cpu`` or ``cuda``: what this vLLM is told that it was built for; sources alone do not say.
        mark: the beginning of the line that is looked for, because vLLM writes to both output streams as well.

    Returns:
        The first line with the mark, without it.

    Raises:
        ValueError: when there is no vLLM, or the process prints no such line; the message has the reason.
    """
    said = folder / "vllm" / "_version.py"
    named = re.search(r"^__version__ = .*'(.+)'", said.read_text() if said.exists() else "", re.MULTILINE)
    if named is None:
        raise ValueError(f"a folder to check must contain vllm/_version.py, got {folder}")
    version = named[1].split("+")[0]
    with tempfile.TemporaryDirectory() as metadata:
        built = f"{version}+cpu" if device == "cpu" else version
        installed = pathlib.Path(metadata, f"vllm-{built}.dist-info")
        installed.mkdir()
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {built}\n")
        path = [metadata, str(folder.resolve()), str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        ran = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "VLLM_LOGGING_LEVEL": "ERROR"},
            cwd=metadata,
            capture_output=True,
            text=True,
        )
    for line in ran.stdout.splitlines():
        if line.startswith(mark):
            return line.removeprefix(mark)
    reason = "\n".join(ran.stderr.strip().splitlines()[-5:])
    raise ValueError(f"vLLM {version} in {folder} cannot be checked:\n{reason}")
