"""``make matrix``: for every vLLM that we know an environment, what it looks like to us, and the tests without a model.

``--engine`` runs a handful of those that start an engine, too: crossings and the reuse of prefixes over HTTP, and
unscaled requests against stock vLLM.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED
from tests.matrix.environments import ROOT, Environment, NotMade, environment_of

MODEL_FREE = ("tests/vllm_adapter", "tests/server", "tests/deploy", "-m", "not engine and not compiled")
ENGINE = ("tests/engine/test_crossing_http.py", "tests/engine/test_http.py", "tests/engine/test_unscaled_is_stock.py")
PYTEST = ("-m", "pytest", "-q", "--no-header", "-rfEs", "-p", "no:cacheprovider")


def looked_at(environment: Environment, tests: list[tuple[str, ...]], log: pathlib.Path) -> tuple[bool, list[str]]:
    """Whether all is as it should be, and lines for people. What tests say goes to the log."""
    report = environment.run("-W", "ignore", "-m", "posenc_runtime.vllm_adapter.comparison")
    lines = [line for line in report.stdout.splitlines() if line.startswith(("vLLM ", "  "))]
    good = report.returncode == 0
    log.write_text(report.stdout)
    for which in tests:
        ran = environment.run(*PYTEST, *which)
        with log.open("a") as told:
            told.write(ran.stdout)
        good &= ran.returncode == 0
        lines += [f"  {line}" for line in ran.stdout.splitlines() if re.match(r"FAILED|ERROR|SKIPPED", line)]
        lines.append(f"  {which[0]} and so on: {ran.stdout.strip().splitlines()[-1]}")
    return good, lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("versions", nargs="*", default=SUPPORTED, help=f"of {', '.join(SUPPORTED)}; all when left out")
    parser.add_argument("--engine", action="store_true", help="run some tests that start an engine, too")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / ".matrix", help="of the environments")
    options = parser.parse_args()
    if unknown := set(options.versions) - set(SUPPORTED):
        parser.error(f"posenc knows {', '.join(SUPPORTED)}, got {', '.join(sorted(unknown))}")
    folder = options.folder.resolve()
    all_good = True
    for version in options.versions:
        older = [each for each in reversed(SUPPORTED) if SUPPORTED.index(each) < SUPPORTED.index(version)]
        try:
            environment = environment_of(version, older, folder)
        except NotMade as error:
            print(f"vLLM {version}: not looked at, for there is no environment: {error}", flush=True)
            all_good = False
            continue
        tests = [MODEL_FREE, *([(*ENGINE, "--timeout", "900")] if options.engine else [])]
        good, lines = looked_at(environment, tests, folder / f"{version}.log")
        all_good &= good
        print(
            f"{'as it should be' if good else 'NOT as it should be'}: {environment.what}", *lines, sep="\n", flush=True
        )
    print(f"what the tests said: {folder}/*.log")
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
