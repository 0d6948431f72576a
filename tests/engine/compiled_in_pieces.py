"""An engine whose model vLLM compiles as for a GPU: in pieces between attention, kept for the engines that follow.

On CPUs vLLM has torch compile the whole. A pass of vLLM that names kernels of CUDA is left out.
"""

from __future__ import annotations

from typing import Any

ARGUMENTS = {"compilation_config": {"compile_sizes": [], "pass_config": {"fuse_norm_quant": False}}}


def install() -> None:
    from vllm.compilation.passes.utility.fix_functionalization import FixFunctionalizationPass
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def check_and_compile_as_asked(vllm_config: Any) -> None:
        compilation = vllm_config.compilation_config
        asked = compilation.mode
        check(vllm_config)
        compilation.mode, compilation.backend = asked, "inductor"

    CpuPlatform.check_and_update_config = staticmethod(check_and_compile_as_asked)
    FixFunctionalizationPass.__call__ = lambda *_: None


if __name__ == "__main__":
    from tests.engine.run_engine import main

    install()
    main()
