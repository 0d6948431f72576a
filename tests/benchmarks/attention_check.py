"""Whether the attentions that are timed compute what they should: against references written from the papers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.benchmarks.attention_rivals import Rival, rivals
from tests.benchmarks.attention_step import Layer, Step, Work
from tests.tolerance import ATTENTION_OUTPUT

# More keys than our kernels give one task, and a block that is not full.
WORKS = (Work("decode", 1100, batch=2), Work("prefill", 150))


class Wrong(RuntimeError):
    """An attention computes something else, so that its time would mean nothing."""


def check(layer: Layer, gates: Sequence[float]) -> None:
    """Run every rival on something small.

    Raises:
        Wrong: naming the rival.
    """
    for work in WORKS:
        step = Step(layer, work)
        for rival in rivals(step, 1, gates):
            rival.attend(0)
            if (found := error(step, rival)) > (most := allowed(step, rival)):
                raise Wrong(f"{rival.name}, {layer.name}, {work.name}: off by {found:.1e}, {most:.1e} is allowed")


def error(step: Step, rival: Rival) -> float:
    """Of its output, as a part of the output that is expected: one Euclidean norm over the other."""
    queries = rival.query.double().split(step.work.queries)
    requests = zip(queries, step.keys.double(), step.values.double(), strict=True)
    expected = torch.cat([rival.reference(*request, step.layer.scale) for request in requests])
    return float((rival.out.double() - expected).norm() / expected.norm())


def allowed(step: Step, rival: Rival) -> float:
    """Roundings, and what the weights that it leaves out can move an output by: window.py has the bound."""
    left_out = 2 * rival.tolerance * float(step.values.abs().max())
    return ATTENTION_OUTPUT[step.layer.dtype_name] + left_out / float(rival.out.double().square().mean().sqrt())
