"""``vllm serve``, whose command vLLM's package for CPUs lacks: it can have several API servers."""

from __future__ import annotations

from posenc_runtime.vllm_adapter import releases


def main() -> None:
    """Serve as the flags of the command line say."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args = releases.cli_args().make_arg_parser(FlexibleArgumentParser()).parse_args()
    releases.cli_args().validate_parsed_serve_args(args)
    ServeSubcommand.cmd(args)


if __name__ == "__main__":
    main()
