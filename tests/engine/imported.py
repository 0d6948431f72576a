"""All of vLLM that an engine imports, and what runs it: engines are forked from a process that has imported this.

What is imported stays. An engine would look through it for garbage several times, and on a CPU once for kernels that
vLLM replaces there: that takes longer than all else at the start of a tiny engine. Here it is done once for all.

Of ours nothing is here that serves: stock vLLM is forked from the same process, and knows nothing of us.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import warnings

from vllm.model_executor.models import registry
from vllm.platforms import current_platform

from tests.engine import device

_WORKERS = ("gpu_worker", "gpu_model_runner", "gpu.model_runner") if device.ON_CUDA else ("cpu_worker",)
# What an engine imports when it is made. A release may have it elsewhere: an engine imports the rest by itself.
_LATE = (
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.entrypoints.openai.api_server",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.transformers",
    "vllm.plugins.lora_resolvers.filesystem_resolver",
    "vllm.plugins.lora_resolvers.hf_hub_resolver",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.pool.flash_maxsim",
)

for _name in ("vllm.entrypoints.llm", *(f"vllm.v1.worker.{worker}" for worker in _WORKERS), "tests.engine.run_engine"):
    importlib.import_module(_name)
for _name in _LATE:
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)

# A release that does not replace kernels, or has another name for it, has nothing to be done here.
if _replace := getattr(current_platform, "register_triton_kernel_overrides", None):
    with warnings.catch_warnings(action="ignore"):  # it touches what PyTorch has deprecated
        _replace()
    type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
# A model that is new to this machine is looked at by an interpreter that imports all of this again, because CUDA might
# be started by it.
if not device.ON_CUDA:
    registry._run_in_subprocess = lambda look: look()
gc.collect()
gc.freeze()
