"""``python -m posenc_runtime.vllm_adapter.comparison [FOLDER ...]``: compares vLLM with what we know of it.

Without a folder, it checks the installed vLLM; with folders, also the vLLM that is unpacked in each of them.
The exit status is 1 where a check fails.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
import warnings

from posenc_runtime.vllm_adapter.comparison.findings import Report
from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m posenc_runtime.vllm_adapter.comparison",
        description=f"Check that vLLM has what posenc uses. Supported releases: {', '.join(SUPPORTED)}.",
    )
    parser.add_argument(
        "folders", nargs="*", type=pathlib.Path, help="folders with an unpacked vllm package, to check too"
    )
    parser.add_argument(
        "--report", action="store_true", help="print only one line, for programs, about the installed vLLM"
    )
    options = parser.parse_args(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing all of vLLM warns of much that is not ours
        here = Report.of_this_process()
    if options.report:
        print(here.line())
        return 0
    print(here.told("installed"))
    good = here.is_good
    platform = importlib.import_module("vllm.platforms").current_platform
    for folder in options.folders:
        try:
            found = Report.of_sources(folder, "cpu" if platform.is_cpu() else "cuda")
        except ValueError as error:
            print(error)
            good = False
            continue
        print(found.told(str(folder)))
        good &= found.is_good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
