"""``vllm bench serve`` as a module: vLLM's package for CPUs has no command that runs."""

from __future__ import annotations

import sys

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    if sys.argv[1:3] != ["bench", "serve"]:
        sys.exit(f"vllm {' '.join(sys.argv[1:3])}: only bench serve is here")
    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    main(parser.parse_args(sys.argv[3:]))
