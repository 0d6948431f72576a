from __future__ import annotations

import warnings

# Importing vLLM warns about things that are not ours; it is imported once here, so that our tests can be strict.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import vllm.engine.arg_utils
    import vllm.entrypoints.launchers.cli_args
    import vllm.model_executor.models.registry  # noqa: F401
