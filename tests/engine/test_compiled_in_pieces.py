"""What vLLM compiles on a GPU, in pieces and kept for the engines that follow, compiled on the CPU."""

from __future__ import annotations

import pathlib

from tests.checkpoints import TRAINED
from tests.engine.compiled_in_pieces import ARGUMENTS
from tests.engine.conftest import PromptMaker
from tests.engine.device import on_the_cpu
from tests.engine.run_engine import how_it_ran, run_engine
from tests.engine.test_crossing import SCALES, arguments, assert_all_answer_as_unrotated
from tests.engine.unrotated_oracle import UnrotatedOracle

pytestmark = on_the_cpu("a GPU runs all of this by itself, in tests/gpu/test_engine.py")


def test_compiled_pieces_and_cached_pieces_answer_as_an_unrotated_cache_would(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    asked = [[(prompts(40), 30), (prompts(TRAINED - 16), 40), (prompts(2 * TRAINED - 12), 40), (prompts(700), 20)]]
    oracle = UnrotatedOracle(tiny, "yarn", SCALES)
    for made in ("compiled", "found"):
        answers = run_engine(
            tiny,
            arguments("yarn", enforce_eager=False) | ARGUMENTS,
            asked,
            environment={"VLLM_CACHE_ROOT": str(tmp_path / "cache")},
            module="tests.engine.compiled_in_pieces",
            folder=tmp_path,
        )
        assert_all_answer_as_unrotated(oracle, asked, answers)
        assert getattr(how_it_ran(tmp_path), made) == 3  # before the first attention, between both, and after the last
