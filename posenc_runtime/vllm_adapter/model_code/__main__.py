"""``python -m posenc_runtime.vllm_adapter.model_code``: prints docs/architectures.md for the installed vLLM."""

from __future__ import annotations

import logging
import sys
import warnings


def main() -> None:
    logging.disable(logging.WARNING)  # vLLM says on import which devices it does not find
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from posenc_runtime.vllm_adapter.model_code import architecture_tables

        sys.stdout.write(architecture_tables.page())


if __name__ == "__main__":
    main()
