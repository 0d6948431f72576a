"""Measures what deployments know of long texts, over any server of OpenAI's API: ``posenc eval``.

A task (``tasks``) makes items and measures them one by one. A target is a server, or a deployment that is started. Each
result goes into a journal at once, so that an evaluation that was killed goes on where it was.
"""

from __future__ import annotations

from posenc_runtime.vllm_adapter.contract.errors import Refused


class EvaluationRefused(Refused):
    """An evaluation that cannot be done as it was asked for: the message gives the rule, the value and what to do."""
