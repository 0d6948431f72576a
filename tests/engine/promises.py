"""What the documentation promises of a running engine, and the page that promises it.

A test that is marked ``promise`` with a name of this table is run by ``make test``; other engine tests are run by
``make test-all`` only.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Promise:
    """A sentence, or a part of one, of a page."""

    page: str
    words: str


PROMISES = {
    "unscaled": Promise("docs/scales.md", "A request at scale 1 gets the answer of stock vLLM, to the bit."),
    "scaled": Promise(
        "docs/scales.md",
        "A request that stays at a larger scale gets the answer of stock vLLM with the same static parameters",
    ),
    "read_time": Promise(
        "docs/methods/rerope.md", "Up to the trained length, answers are those of stock vLLM, to the bit."
    ),
    "mixed batch": Promise("docs/index.md", "requests of different scales share one batch"),
    "rerotate": Promise(
        "docs/scales.md", "an engine that caches keys without rotation, and rotates all of them anew in every step"
    ),
    "recompute": Promise("docs/scales.md", "those of a request that ran at that scale from the start"),
    "pin": Promise(
        "docs/scales.md", "the request never crosses: it was admitted at the largest length that it may reach"
    ),
    "preemption": Promise("docs/scales.md", "A preempted request** replays its crossings when it runs again"),
    "prefix cache": Promise("docs/scales.md", "A request never reads keys that are rotated for another scale."),
    "prefix reuse": Promise(
        "docs/scales.md", "also prefixes that were cached at another scale, as copies that are turned to its own"
    ),
    "conversations go on": Promise(
        "docs/scales.md", "Its answer is that of one request which began with the first turn and never ended."
    ),
    "longrope": Promise("docs/models.md", "| Phi-3 for 128k, Phi-4-mini | `longrope` |"),
    "llama3": Promise("docs/models.md", "| Llama 3.1, 3.2 and 3.3, Step 3.5 | `llama3` |"),
    "distance bias": Promise("docs/attention.md", "vLLM's model with Posenc's `bias` attention"),
    "contextual positions": Promise("docs/attention.md", "and vLLM serves the same weights"),
    "tensor parallelism": Promise("docs/limits.md", "| tensor parallelism | yes |"),
    "one flag": Promise(
        "docs/plugin.md",
        "Routes, the scale in answers, refusals, defaults and metrics are the same as with `posenc serve`.",
    ),
    "Python": Promise("docs/plugin.md", "`engine_arguments` makes the arguments of `vllm.LLM` from a deployment"),
    "start page": Promise("docs/index.md", "Five commands lead from nothing to a request that outgrows its scale."),
    "answers over HTTP": Promise(
        "docs/scales.md",
        "Every answer to a chat or a completion, and of the routes that score and decide, says its scale",
    ),
    "crossings over HTTP": Promise("docs/scales.md", "one entry for each crossing: the length `at` which it happened"),
    "metrics": Promise("docs/index.md", "`/metrics` counts requests, tokens and KV blocks by scale"),
    "refusals": Promise("docs/limits.md", "Unsupported configurations fail at start-up; the error names the setting."),
    "keys": Promise(
        "docs/security.md", "Without a valid key it gets status 401 from every route but those of liveness"
    ),
    "stop": Promise(
        "CHANGELOG.md", "A server that is told to stop ends the answers under way with what was said, and is gone"
    ),
}
