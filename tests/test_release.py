"""What a release says in several places, and what checks and builds it."""

from __future__ import annotations

import pathlib
import re
import tomllib
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
STEPS: list[dict[str, Any]] = [step for job in JOBS.values() for step in job["steps"]]


def test_the_newest_release_of_the_changelog_is_this_version_with_its_date() -> None:
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    releases = [section for section in sections if section != "Unreleased"]
    assert sections == ["Unreleased"] * (len(sections) - len(releases)) + releases
    assert re.fullmatch(rf"{re.escape(PROJECT['version'])} - \d{{4}}-\d\d-\d\d", releases[0])


def test_security_fixes_are_promised_to_this_version() -> None:
    minor = PROJECT["version"].rpartition(".")[0]
    assert f"\n| {minor}.x | yes |\n" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_the_start_page_installs_the_wheel_of_this_version() -> None:
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"posenc-([\w.]+)-py3-none-any\.whl", text)) == {PROJECT["version"]}


def test_the_hosted_checks_are_run_by_every_python_that_the_package_names() -> None:
    named = [
        found[1] for found in map(re.compile(r".* :: (3\.\d+)").fullmatch, PROJECT["classifiers"]) if found is not None
    ]
    assert JOBS["check"]["strategy"]["matrix"]["python"] == named
    first, last = (int(version.removeprefix("3.")) for version in (named[0], named[-1]))
    assert PROJECT["requires-python"] == f">=3.{first},<3.{last + 1}"
    assert ".ci/run" in [step.get("run") for step in JOBS["check"]["steps"]]


def test_every_action_is_pinned_to_a_commit_and_says_which_version_that_is() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used and len(re.findall(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+\n", text)) == len(used)


def test_the_workflow_may_read_and_holds_no_secret() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert WORKFLOW["permissions"] == {"contents": "read"} and text.count("permissions:") == 1
    assert "secrets" not in text
    checkouts = [step for step in STEPS if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(JOBS) and all(step["with"] == {"persist-credentials": False} for step in checkouts)


def test_only_a_tag_that_passed_is_built() -> None:
    assert (JOBS["release"]["needs"], JOBS["release"]["if"]) == ("check", "github.ref_type == 'tag'")
    steps = JOBS["release"]["steps"]
    assert [step.get("run") for step in steps].index("python -m build") > next(
        index for index, step in enumerate(steps) if "GITHUB_REF_NAME" in step.get("run", "")
    )


def test_hooks_before_a_commit_are_tools_of_the_environment() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    tools = [re.findall(r'"\$\{POSENC_VENV:-\.venv\}/bin/([a-z]+)"', hook["entry"]) for hook in repository["hooks"]]
    assert tools == [["ruff"], ["ruff"], ["mypy"]]
    development = [re.split(r"[^a-z-]", asked)[0] for asked in PROJECT["optional-dependencies"]["dev"]]
    assert {"ruff", "mypy"} <= set(development)
