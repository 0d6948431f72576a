"""One short request to a running engine, which shows that it generates."""

from __future__ import annotations

import asyncio
import math
import uuid
from typing import Any

PREFIX = "posenc-probe-"


class NoToken(RuntimeError):
    """The engine gave no token; the message says why."""


async def one_token(engine: Any, seconds: float) -> None:
    """Have an engine generate one token, at scale 1. The request waits in the queue as others do.

    Args:
        engine: vLLM's client of a running engine.
        seconds: that it may take.

    Raises:
        NoToken: when no token came in time, the engine refused the request, or the model computed no numbers.
    """
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False, logprobs=1)
    (prompt,) = engine.renderer.render_cmpl([{"prompt_token_ids": [_any_token(engine)]}])
    answer = None
    try:
        async with asyncio.timeout(seconds):
            # The class's own method: the instance's writes the log of requests.
            async for output in type(engine).generate(engine, prompt, params, f"{PREFIX}{uuid.uuid4().hex}"):
                answer = output.outputs[0]
    except TimeoutError:
        raise NoToken(f"no token after {seconds:g} s") from None
    except Exception as error:
        raise NoToken(str(error) or type(error).__name__) from error
    if answer is None or not answer.token_ids:
        raise NoToken("the request ended without a token")
    if not all(math.isfinite(each.logprob) for each in answer.logprobs[0].values()):
        raise NoToken("the model computes no finite numbers: its weights may be damaged")


def _any_token(engine: Any) -> int:
    token = getattr(engine.model_config.hf_text_config, "bos_token_id", None)
    return token if isinstance(token, int) else 0
