"""The matrix: what a vLLM looks like to us, of the one that is installed and of others by their sources."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
import vllm

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.comparison.__main__ import main
from posenc_runtime.vllm_adapter.comparison.findings import Report
from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED

INSTALLED = pathlib.Path(vllm.__file__).parent
GOOD = Report(
    version=SUPPORTED[-1],
    is_known=True,
    is_compiled=True,
    num_names=3,
    lacking=[],
    num_functions=2,
    misfits=[],
    old_ways=[],
    astray=[],
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The Python files of the installed vLLM, of which each can be changed by itself."""
    folder = tmp_path_factory.mktemp("sources")
    for path in INSTALLED.rglob("*"):
        target = folder / "vllm" / path.relative_to(INSTALLED)
        if path.is_file() and path.suffix != ".pyc" and ".so" not in path.suffixes:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    return folder


def change(path: pathlib.Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.unlink()
    path.write_text(text.replace(old, new))


def test_the_vllm_that_is_installed_is_as_we_know_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert f"vLLM {releases.installed_version()} (installed)\n" in out
    assert (
        "names of vLLM that posenc uses: all found" in out
        and "that vLLM calls instead of its own: all compatible" in out
    )


@pytest.mark.slow
@pytest.mark.release
def test_other_sources_are_looked_at_and_what_does_not_fit_is_told(
    sources: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = sources / "vllm" / "v1" / "core"
    change(core / "block_pool.py", "def evict_blocks(", "def throw_out_blocks(")
    change(
        core / "sched" / "scheduler.py", "throttle_prefills: bool = False)", "throttle_prefills: bool, urgent: bool)"
    )
    assert main([str(sources), str(sources / "vllm")]) == 1
    _, _, other = capsys.readouterr().out.partition("(installed)")
    without = "without its compiled libraries, so it can be checked but not run"
    assert f"vLLM {releases.installed_version()} ({sources}; {without})" in other
    assert "1 not found\n    vllm.v1.core.block_pool.BlockPool.evict_blocks\n" in other
    assert "2 not compatible\n    scheduler.PosencScheduler.schedule takes no positional argument urgent\n" in other
    assert f"a folder to check must contain vllm/_version.py, got {sources / 'vllm'}" in other


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"is_known": False}, "which posenc does not support"),
        ({"is_compiled": False}, "without its compiled libraries, so it can be checked but not run"),
        ({"lacking": ["vllm.x"]}, "  3 names of vLLM that posenc uses: 1 not found\n    vllm.x\n"),
        (
            {"misfits": ["a takes no b"]},
            "  2 functions of posenc that vLLM calls instead of its own: 1 not compatible\n",
        ),
        ({"old_ways": ["NO_FETCH_STAGES"]}, "    NO_FETCH_STAGES: the scheduler does not record"),
        ({"astray": ["NO_FETCH_STAGES"]}, "  differences that do not fit its version: NO_FETCH_STAGES"),
    ],
)
def test_what_is_not_as_it_should_be_is_told_and_is_not_good(changed: dict[str, object], line: str) -> None:
    report = dataclasses.replace(GOOD, **changed)  # type: ignore[arg-type]
    assert line in report.told("here")
    assert line not in GOOD.told("here")
    assert report.is_good is (changed.keys() <= {"is_compiled", "old_ways"})
