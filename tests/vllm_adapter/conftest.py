from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.releases.differences import Difference

# Importing vLLM warns about things that are not ours; it is imported once here, so that our tests can be strict.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import vllm.engine.arg_utils
    import vllm.model_executor.models.registry  # noqa: F401

    releases.cli_args()


@pytest.fixture
def as_if(monkeypatch: pytest.MonkeyPatch) -> Callable[[Difference, bool], None]:
    """Says to our code that the vLLM in this process has a difference, or does not have it."""

    def say(difference: Difference, is_here: bool) -> None:
        monkeypatch.setitem(vars(difference), "is_here", is_here)

    return say
