"""Describes in words and tables what a deployment does: scales, lengths, memory, and what requests would get."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from posenc_runtime.kv.admission import admit

if TYPE_CHECKING:
    from posenc_runtime.kv.budget import Budget
    from posenc_runtime.kv.deployment import Deployment
    from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint
    from posenc_runtime.vllm_adapter.checkpoint.model_code.verdicts import Verdict
    from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
    from posenc_runtime.vllm_adapter.metrics.layer_groups import LayerGroup
    from server.deployment.settings import Settings
    from server.deployment.shipped import About

_BYTES_PER_VALUE = {"float32": 4, "float": 4}  # every other data type that vLLM serves in takes 2


def headline(settings: Settings, deployment: Deployment, checkpoint: Checkpoint | None) -> str:
    """One line, in rich's markup: what is served, and how it is scaled."""
    name = escape(settings.served_model_name or settings.model)
    if not deployment.rotates:
        stay = checkpoint is not None and checkpoint.spec is not None
        why = "vLLM's own rotary embeddings" if stay else "no rotary embeddings"
        return f"[bold]{name}[/]: {why}, so nothing is scaled; serves {deployment.max_model_len} tokens"
    if deployment.turns_queries:
        return (
            f"[bold]{name}[/]: trained on {deployment.original_max_position_embeddings} tokens, serves "
            f"{deployment.max_model_len}; {deployment.rope_type}"
        )
    scales = ", ".join(deployment.scale_set.label(index) for index in range(len(deployment.scales)))
    return (
        f"[bold]{name}[/]: trained on {deployment.original_max_position_embeddings} tokens, serves "
        f"{deployment.max_model_len}; {deployment.rope_type} at scales {scales}"
    )


def distances_line(deployment: Deployment, block_size: int | None) -> str:
    """How far away a query finds keys, where queries turn.

    Args:
        block_size: of the KV cache, tokens; None where nobody knows it yet.
    """
    trained, pages = deployment.original_max_position_embeddings, deployment.pages(block_size)
    line = (
        f"distances: up to {trained:,} tokens as trained. A query past them sees at least the last {pages.window:,} "
        f"tokens as trained, and all others at most {pages.farthest:,} tokens away, in pages of {pages.page:,}"
    )
    if pages.leak is None:
        return line
    order = min(pages.bounded_from, deployment.max_model_len)
    return f"{line}. The pages of the last {order:,} tokens keep their order"


def deployment_lines(name: str, about: About) -> str:
    """A deployment that comes with Posenc, in rich's markup: its name and model, and below them what it is."""
    return f"[bold]{name}[/]  {escape(about.model)}\n    {escape(about.summary)}"


def attention_line(choice: AttentionChoice, deployment: Deployment) -> str:
    """The attention that the layers will have, as far as the checkpoint's configuration tells."""
    if deployment.turns_queries:
        return "attention: vLLM's own up to the trained length; past it, one that turns queries"
    if not choice.takes_ours:
        rotates = "; the kernel that caches keys also rotates queries and keys"
        return "attention: vLLM's own" + (rotates if choice.fused_rotary == "on" else "")
    backend = choice.needs if choice.backend == "auto" else choice.backend
    if backend != "bias":
        return f"attention: {backend}"
    if not choice.window_tolerance:
        return "attention: bias; all keys are read"
    return (
        "attention: bias; where the bias decays, distant keys that together have less than "
        f"{choice.window_tolerance:g} of the attention weights are not read"
    )


def attention_layers_line(groups: Iterable[LayerGroup]) -> str:
    """The attention backends in the layers of a running engine."""
    return "attention: " + "; ".join(f"layers {group.layers}: {group.backend} ({group.encoding})" for group in groups)


def crossings_line(verdict: Verdict) -> str:
    """How requests of the model may cross, as far as its sources tell, in rich's markup."""
    if verdict.kind == "at load":
        return f"crossings: known when the model is loaded, because {escape(verdict.reason)}"
    ways = {"rerotate": "rerotate, recompute or pin", "recompute, pin": "recompute or pin"}
    line = f"crossings: {ways.get(verdict.kind, verdict.kind)}"
    if not verdict.reason:
        return line
    return f"{line}{'; ' if verdict.kind == 'rerotate' else ', because '}{escape(verdict.reason.replace('`', ''))}"


def budget_line(budget: Budget) -> str:
    """How many cached tokens are re-rotated before a step."""
    return f"crossings: at most {budget.tokens:,} cached tokens are re-rotated before a step: {budget.reason}"


def scales_table(deployment: Deployment, checkpoint: Checkpoint | None) -> Table:
    """Each scale, the longest request that it takes, and what it does to the frequencies."""
    table = Table(title="Scales", title_justify="left")
    for heading in ("scale", "requests of", "attention factor", "lowest frequency"):
        table.add_column(heading, justify="right")
    shortest = 1
    for index, length in enumerate(deployment.scale_set.lengths):
        row = [deployment.scale_set.label(index), f"{shortest} to {length} tokens"]
        if checkpoint is None or checkpoint.spec is None:
            row += ["unknown", "unknown"]
        else:
            unscaled = deployment.frequencies(checkpoint.spec, 0)
            scaled = deployment.frequencies(checkpoint.spec, index)
            slowest = checkpoint.spec.num_turning_pairs - 1
            slowed = float(unscaled.inv_freq[slowest] / scaled.inv_freq[slowest])
            turns = math.isfinite(slowed)  # methods may let pairs stand still
            row += [f"{scaled.attention_factor:.4f}", f"divided by {slowed:.2f}" if turns else "stands still"]
        table.add_row(*row)
        shortest = length + 1
    return table


def table_memory(deployment: Deployment, checkpoint: Checkpoint | None, dtype: str, choice: AttentionChoice) -> str:
    """Memory that the stacked table of cosines and sines takes on each worker."""
    if choice.fused_rotary == "on":
        return "rotary table: none, because attention computes the angles"
    num_rows = deployment.scale_set.num_rows
    if checkpoint is None or checkpoint.spec is None:
        return f"rotary table: {num_rows} rows; its memory is unknown, because the model's configuration cannot be read"
    mebibytes = num_rows * checkpoint.spec.rotary_dim * _BYTES_PER_VALUE.get(dtype, 2) / 2**20
    return f"rotary table: {num_rows} rows of {checkpoint.spec.rotary_dim} values, {mebibytes:.2f} MiB on each worker"


def requests_table(deployment: Deployment, lengths: Iterable[int]) -> Table:
    """What requests of given lengths, prompt and answer together, would get.

    That is the scale of their last token or, where queries turn, how many tokens lie past the trained length.
    """
    table = Table(title="Requests", title_justify="left")
    table.add_column("tokens", justify="right")
    table.add_column(_what_requests_get(deployment))
    for length in lengths:
        if length > deployment.max_model_len:
            table.add_row(str(length), f"refused: longer than max_model_len {deployment.max_model_len}")
            continue
        if deployment.turns_queries:
            past = max(length - deployment.original_max_position_embeddings, 0)
            table.add_row(str(length), _last(past) if past else "none: stock vLLM's answer")
            continue
        admission = admit(deployment, num_prompt_tokens=length, max_tokens=0)
        table.add_row(str(length), f"scale {deployment.scale_set.label(admission.scale_index)}")
    return table


def _what_requests_get(deployment: Deployment) -> str:
    if deployment.turns_queries:
        return "turns queries of"
    return "ends at" if deployment.crosses else "runs at"


def _last(num_tokens: int) -> str:
    return "the last token" if num_tokens == 1 else f"the last {num_tokens} tokens"


def telling_lengths(deployment: Deployment) -> list[int]:
    """Lengths worth showing: half of the first scale's, and for each scale its length and one token more.

    Where queries turn, the trained length and the longest request take the place of scales' lengths.
    """
    ends = deployment.scale_set.lengths
    if deployment.turns_queries:
        ends = tuple(sorted({min(deployment.original_max_position_embeddings, *ends), *ends}))
    return sorted({max(ends[0] // 2, 1), *ends, *(end + 1 for end in ends)})
