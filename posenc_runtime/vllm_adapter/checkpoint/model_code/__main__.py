"""``python -m posenc_runtime.vllm_adapter.checkpoint.model_code [FOLDER ...]``: prints docs/architectures.md.

The page is about the installed vLLM, and the one that is unpacked in each of the folders.
"""

from __future__ import annotations

import argparse
import logging
import pathlib
import sys
import warnings

from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m posenc_runtime.vllm_adapter.checkpoint.model_code",
        description="Print docs/architectures.md, for the installed vLLM and others.",
    )
    parser.add_argument(
        "folders",
        nargs="*",
        type=pathlib.Path,
        help="folders with an unpacked vllm package, which the page is about too",
    )
    parser.add_argument(
        "--release", action="store_true", help="print only one line, for programs, about the installed vLLM"
    )
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # vLLM says on import which devices it does not find
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.platforms import current_platform

        from posenc_runtime.vllm_adapter.checkpoint.model_code import architecture_page
        from posenc_runtime.vllm_adapter.checkpoint.model_code.architecture_tables import Release

        here = Release.of_this_process()
    if options.release:
        print(here.line())
        return 0
    device = "cpu" if current_platform.is_cpu() else "cuda"
    try:
        releases = [here, *(Release.of_sources(folder, device) for folder in options.folders)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    found = [each.version for each in releases]
    if set(found) != set(SUPPORTED) or len(found) > len(SUPPORTED):
        print(f"posenc supports vLLM {', '.join(SUPPORTED)}, and the page is about {', '.join(found)}", file=sys.stderr)
    sys.stdout.write(architecture_page.page(releases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
