"""What ends an evaluation before it measures anything: one line, and status 2."""

from __future__ import annotations

from posenc_runtime.vllm_adapter.contract.errors import Refused


class EvaluationRefused(Refused):
    """An evaluation that cannot be done as it was asked for: the message gives the rule, the value and what to do."""
