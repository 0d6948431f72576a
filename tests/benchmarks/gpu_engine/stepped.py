"""An engine that is stepped by hand: the longest step of a crossing, and the first token over a reused prefix."""

from __future__ import annotations

import statistics
from typing import Any

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.benchmarks.crossings import BEFORE, Crossed
from tests.benchmarks.crossings import Case as Crossing
from tests.benchmarks.engine_process import EngineFailed, EngineProcess
from tests.benchmarks.gpu.rows import Row, at_least, at_most
from tests.benchmarks.gpu_engine.part import Found, Part, Stage, fewer, tokens
from tests.benchmarks.gpu_engine.sizes import SCALES, Sizes
from tests.benchmarks.intervals import median_and_quartiles


def rows(sizes: Sizes) -> list[Row]:
    return [
        Row(f"crossing at {sizes.trained:,} tokens, stepped", "longest step over the median step", at_most(2)),
        Row(f"crossing at {sizes.trained:,} tokens, stepped", "ms until its next token"),
        Row(f"prefix of {sizes.reused:,} tokens at another scale", "first token, prefilled over reused", at_least(50)),
    ]


def deployment(sizes: Sizes) -> Deployment:
    return Deployment(
        rope_type="yarn",
        scales=SCALES,
        original_max_position_embeddings=sizes.trained,
        max_model_len=sizes.longest,
        headroom_tokens=sizes.before,
        rerotate_budget_tokens=sizes.budget,
        prefix_reuse="rerotate",
    )


def measure(stage: Stage) -> Found:
    sizes = stage.sizes
    with EngineProcess(
        stage.model,
        engine_arguments(deployment(sizes), sizes.crossing_arguments),
        worker_cores=stage.cores,
        plugins="posenc",
        log=stage.folder / "stepped.log",
        patience=stage.patience,
        worker="tests.benchmarks.stepping_worker",
        in_one_process=True,
    ) as engine:
        worst, wait, reuse = rows(sizes)
        crossed = _cross(engine, stage)
        budget = f"{crossed.num_budget_tokens:,} tokens are re-rotated before a step"
        if crossed.crossing:
            usual = statistics.median(crossed.usual)
            remark = f"the median step takes {1000 * usual:.2f} ms, with {sizes.others} others; {budget}"
            remark += fewer(len(crossed.crossing), sizes.repetitions, "repetitions")
            waits = [1000 * sum(window) for window in crossed.crossing]
            yield (
                [
                    worst.measured(median_and_quartiles(crossed.worst_steps), remark=remark),
                    wait.measured(median_and_quartiles(waits)),
                ],
                {"usual_seconds": crossed.usual, "crossing_seconds": crossed.crossing},
            )
        pairs = _reuse(engine, stage)
        if pairs:
            ratio = median_and_quartiles([prefilled / reused for prefilled, reused in pairs])
            remark = (
                f"{1000 * statistics.median(prefilled for prefilled, _ in pairs):,.0f} ms prefilled, "
                f"{1000 * statistics.median(reused for _, reused in pairs):,.1f} ms reused, with {sizes.asked} tokens "
                f"behind the prefix; {budget}"
            )
            remark += fewer(len(pairs), sizes.repetitions, "repetitions")
            samples = [{"prefilled": prefilled, "reused": reused} for prefilled, reused in pairs]
            yield [reuse.measured(ratio, remark=remark)], {"first_token_seconds": samples}


def _cross(engine: EngineProcess, stage: Stage) -> Crossed:
    sizes = stage.sizes
    assert sizes.before == BEFORE, "the steps of a crossing are told by the tokens before it"
    crossed = Crossed(Crossing(sizes.trained, sizes.budget, keeps_prefix=True))
    long = tokens(sizes, sizes.trained - BEFORE, "long")
    for repetition in range(sizes.repetitions + 1):
        if not stage.goes_on():
            break
        others = [tokens(sizes, sizes.others_tokens, f"{repetition}:{number}") for number in range(sizes.others)]
        answer = engine.ask({"others": others, "long": long, "new_tokens": BEFORE + sizes.after})
        if [crossing["at"] for crossing in answer["posenc"]["crossings"]] != [sizes.trained]:
            raise EngineFailed(f"did not cross once, at {sizes.trained}: {answer['posenc']}")
        if repetition:
            crossed.add(answer)
    return crossed


def _reuse(engine: EngineProcess, stage: Stage) -> list[tuple[float, float]]:
    """Seconds to the first token, prefilled and reused, pair by pair."""
    sizes, pairs = stage.sizes, []
    for repetition in range(sizes.repetitions + 1):
        if not stage.goes_on():
            break
        document = tokens(sizes, sizes.reused, f"document {repetition}")
        question = tokens(sizes, sizes.asked, f"question {repetition}")
        fresh = tokens(sizes, sizes.reused + sizes.asked, f"fresh {repetition}")
        _first_token(engine, document + question[:8], reused=0)
        reused = _first_token(engine, document + question, reused=sizes.reused)
        prefilled = _first_token(engine, fresh, reused=0)
        if repetition:
            pairs.append((prefilled, reused))
    return pairs


def _first_token(engine: EngineProcess, prompt: list[int], *, reused: int) -> float:
    answer: dict[str, Any] = engine.ask({"others": [], "long": prompt, "new_tokens": 1})
    found = sum(prefix["tokens"] for prefix in answer["posenc"].get("prefixes_reused", ()))
    if found != reused or (not reused and answer["cached_tokens"]):
        raise EngineFailed(f"{found} tokens were reused and {answer['cached_tokens']} cached, not {reused} reused")
    seconds: float = answer["first_token_seconds"]
    return seconds


PART = Part("stepped", rows, measure)
