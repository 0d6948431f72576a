"""What is promised of every kind of model: unscaled it is stock vLLM's, scaled a static deployment's, and so on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tests.engine import family_runs
from tests.engine.families_oracle import SCALES, FamilyOracle
from tests.engine.family_runs import HEADROOM, Ran, Request
from tests.engine.greedy import alike
from tests.engine.run_engine import Answer
from tests.tolerance import (
    LOGPROB_AFTER_CROSSING,
    LOGPROB_FLOAT32,
    LOGPROB_LAST_BITS_BFLOAT16,
    LOGPROB_RMS_BFLOAT16,
)

# With MLA, unless the CPU has AMX, or with a state space, vLLM on the CPU caches no prefixes.
_WITHOUT_PREFIX_CACHE = ("deepseek_v2", "deepseek_v3", "deepseek_v3_plain", "deepseek_v3_bfloat16", "falcon_h1")


def assert_unscaled_requests_are_stock_vllms_to_the_bit(ran: Ran) -> None:
    theirs = family_runs.stock(ran)
    assert [answer.posenc and answer.posenc["scale"] for answer in ran.unscaled] == [1] * len(theirs)
    assert_equal(ran.unscaled, theirs)


def assert_a_mixed_batch_is_that_of_static_deployments(
    ran: Ran, scales: Sequence[int] = SCALES[-1:], *, to_the_bit: bool = True
) -> None:
    for scale in scales:
        theirs = family_runs.static(ran, scale)
        of_scale = [index for index, each in enumerate(ran.asked.scales) if each == scale]
        ours = [ran.mixed[index] for index in of_scale]
        assert [answer.posenc and (answer.posenc["scale"], answer.posenc["crossings"]) for answer in ours] == [
            (scale, [])
        ] * len(of_scale)
        assert_equal(ours, [theirs[index] for index in of_scale], 0 if to_the_bit else LOGPROB_FLOAT32)


def assert_answers_are_transformers_with_keys_turned_at_crossings(ran: Ran) -> None:
    oracle = FamilyOracle(ran.name)
    for requests, answers in [(ran.asked.mixed, ran.mixed)] + [
        (requests, ran.crossing[how]) for how, requests in ran.asked.crossing.items()
    ]:
        for request, answer in zip(requests, answers, strict=True):
            prompt, _ = request
            if isinstance(prompt, dict):  # with a picture, which the oracle does not see
                continue
            _assert_crossings(ran.name, oracle, request, answer)
            how = family_runs.on_crossing(ran.name)
            greedy, logprobs = oracle.score(prompt, answer.token_ids, _first_scale(oracle, request), how)
            assert answer.token_ids == greedy
            assert _apart(answer.logprobs, logprobs) < LOGPROB_AFTER_CROSSING
    _assert_reused_and_preempted(ran)


def assert_answers_are_near_transformers_with_keys_turned_at_crossings(ran: Ran) -> None:
    """For engines in 16 bits: transformers computes in float32, and answers would differ by more if no key turned."""
    oracle = FamilyOracle(ran.name)
    for how, requests in ran.asked.crossing.items():
        for request, answer in zip(requests, ran.crossing[how], strict=True):
            _assert_crossings(ran.name, oracle, request, answer)
            _, logprobs = oracle.score(request[0], answer.token_ids, _first_scale(oracle, request), "rerotate")
            apart = [one - other for one, other in zip(answer.logprobs, logprobs, strict=True)]
            assert math.sqrt(statistics.fmean(each**2 for each in apart)) < LOGPROB_RMS_BFLOAT16
    _assert_reused_and_preempted(ran)


def assert_answers_are_those_with_keys_turned_in_float64(ran: Ran) -> None:
    """For families that transformers computes otherwise than vLLM does, or rounds to 16 bits elsewhere."""
    oracle = FamilyOracle(ran.name)
    # Those from the prefix cache are the same requests once more.
    again = "from the prefix cache"
    theirs = family_runs.turned_in_float64(ran, {how: each for how, each in ran.asked.crossing.items() if how != again})
    theirs[again] = theirs["together"]
    for how, requests in ran.asked.crossing.items():
        for request, answer, other in zip(requests, ran.crossing[how], theirs[how], strict=True):
            _assert_crossings(ran.name, oracle, request, answer)
            assert alike(
                (answer.token_ids, answer.logprobs),
                (other.token_ids, other.logprobs),
                LOGPROB_AFTER_CROSSING if ran.family.dtype == "float32" else LOGPROB_LAST_BITS_BFLOAT16,
            )
    _assert_reused_and_preempted(ran)


def assert_equal(answers: Sequence[Answer], theirs: Sequence[Answer], tolerance: float = 0.0) -> None:
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in theirs]
    for answer, other in zip(answers, theirs, strict=True):
        assert _apart(answer.logprobs, other.logprobs) <= tolerance


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def _first_scale(oracle: FamilyOracle, request: Request) -> int:
    prompt, max_tokens = request
    return oracle.first_scale(len(prompt) + min(max_tokens, HEADROOM))


def _assert_crossings(name: str, oracle: FamilyOracle, request: Request, answer: Answer) -> None:
    prompt, max_tokens = request
    path = oracle.path(_first_scale(oracle, request), len(prompt) + max_tokens - 1)  # the last token is never computed
    assert answer.posenc is not None
    assert answer.posenc["crossings"] == [
        {"at": position, "from": path[position - 1], "to": path[position], "how": family_runs.on_crossing(name)}
        for position in range(1, len(path))
        if path[position] != path[position - 1]
    ]


def _assert_reused_and_preempted(ran: Ran) -> None:
    reused = any(answer.num_cached_tokens for answer in ran.crossing["from the prefix cache"])
    assert reused or ran.name in _WITHOUT_PREFIX_CACHE
    assert ran.preemptions >= 3
