"""How vLLM may run a step on a GPU: by which model runner, compiled or not, from which CUDA graphs."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from tests.engine.run_engine import how_it_ran
from tests.tolerance import LOGPROB_EXACT_ANGLES, LOGPROB_FLOAT32


@dataclasses.dataclass(frozen=True)
class Mode:
    """
    Attributes:
        runner: 1 or 2, of vLLM's model runners.
        graphs: vLLM's ``cudagraph_mode``.
        compiled: by torch.compile; piecewise graphs are cut by it.
        ahead: each step is scheduled while the one before it runs.
    """

    runner: int
    graphs: str
    compiled: bool
    ahead: bool = True

    @property
    def engine(self) -> dict[str, Any]:
        """Engine arguments."""
        compilation = {"mode": 3 if self.compiled else 0, "cudagraph_mode": self.graphs}
        return {"enforce_eager": False, "compilation_config": compilation, "async_scheduling": self.ahead}

    @property
    def environment(self) -> dict[str, str]:
        """Sums that the compiler chooses the order of by a stopwatch would differ from one engine to the next."""
        return {"VLLM_USE_V2_MODEL_RUNNER": str(self.runner - 1), "TORCHINDUCTOR_DETERMINISTIC": "1"}

    def assert_ran(self, folder: pathlib.Path, attention: str) -> None:
        """The engine of a folder ran in this mode, and not in one that vLLM took instead."""
        ran = how_it_ran(folder)
        assert (ran.model_runner, ran.cudagraph_mode) == (self.runner, self.graphs)
        assert (ran.graphs > 0) == (self.graphs != "NONE")
        assert (ran.attention, ran.async_scheduling) == ([attention], self.ahead)


MODES = {
    "v2-default": Mode(2, "FULL_AND_PIECEWISE", compiled=True),
    "v2-piecewise": Mode(2, "PIECEWISE", compiled=True),
    "v2-full": Mode(2, "FULL", compiled=False),
    "v2-in-step": Mode(2, "FULL_AND_PIECEWISE", compiled=True, ahead=False),
    "v1-default": Mode(1, "FULL_AND_PIECEWISE", compiled=True),
    "v1-full": Mode(1, "FULL", compiled=False),
    "v1-eager": Mode(1, "NONE", compiled=False, ahead=False),
}
DEFAULTS = {name: MODES[name] for name in ("v2-default", "v1-default")}

# Who rotates: the rotary embedding by rows of its table, or attention.
ATTENTION = {"table": AttentionChoice(fused_rotary="off"), "fused": AttentionChoice(fused_rotary="on")}


def tolerated(attention: AttentionChoice) -> float:
    """Between logprobs of an engine and of transformers, both in float32."""
    return LOGPROB_EXACT_ANGLES if attention.fused_rotary == "on" else LOGPROB_FLOAT32


def over(backend: str, attention: AttentionChoice) -> str:
    """What attends where a backend of vLLM is chosen."""
    return f"{backend.lower()}_rotary" if attention.fused_rotary == "on" else backend
