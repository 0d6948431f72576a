"""One layer whose queries turn on CUDA, around vLLM's own attention: what both write in the same step.

Run as a module it prints into a file what is wrong, over Triton's interpreter; tests on a GPU call the same functions.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import types
from typing import Any

import torch
from torch import Tensor

from posenc_runtime.kv.deployment import Deployment
from tests.kernels.read_time_cases import Case, Tensors, rerope
from tests.tolerance import ATTENTION_TIMES_TORCH

TRAINED = 128
METHOD = rerope(TRAINED, 64, 64)
# Below the trained length, at its edge, past it, and a block's first; then chunks and drafted tokens, one across it.
LONE = ((7, 1), (128, 1), (129, 1), (301, 1), (65, 1))
MIXED = ((7, 1), (301, 1), (150, 60), (260, 4), (40, 40))


class Layer:
    """A layer's attention: vLLM's, and ours around it, over one cache.

    Args:
        case: the step's requests, in vLLM's layout; a cache in 8 bits is not among what this layer does.
    """

    def __init__(self, backend: str, case: Case, device: str = "cpu") -> None:
        self.case, self.tensors = case, Tensors(case)
        module, name = self._module(backend)
        self._backend, self._device = backend, torch.device(device)
        self.query = self.tensors.query.to(device)
        both = self.tensors.both
        self.cache = both.transpose(1, 2).contiguous().to(device).transpose(1, 2)  # tokens before heads
        shape = (case.num_heads, case.head_dim, case.scale, case.num_kv_heads, None, None, "auto", None)
        named = {} if self.tensors.logits.sinks is None else {"sinks": self.tensors.logits.sinks.to(device, case.dtype)}
        stock = getattr(module, f"{name}Impl").__mro__[2]
        self.stock = stock(*shape, "decoder", None, **named)
        self.ours = getattr(module, f"{name}Impl")(*shape, "decoder", None, **named)
        one = torch.ones((), device=device)
        self._layer = types.SimpleNamespace(
            _q_scale=one, _k_scale=one, _v_scale=one, dtype=case.dtype, layer_name="a layer"
        )
        read_time = case.read_time()
        self.ours.turn_by(dataclasses.replace(read_time, phases=read_time.phases.to(device)), self._layer)
        batch = case.batch()
        self.common = types.SimpleNamespace(
            **{name: getattr(batch, name).to(device) for name in ("block_table", "query_start_loc", "seq_lens")},
            max_query_len=batch.max_query_len,
            max_seq_len=batch.max_seq_len,
        )
        self.builder = self._builder(module, name.removeprefix("Turning"))

    @staticmethod
    def _module(backend: str) -> tuple[Any, str]:
        from posenc_runtime.vllm_adapter.in_worker.attention.fused_rotary import flash, triton

        return (flash, "TurningFlashAttention") if backend == "FLASH_ATTN" else (triton, "TurningTritonAttention")

    def _builder(self, module: Any, name: str) -> Any:
        from vllm.config import CUDAGraphMode

        from posenc_runtime.vllm_adapter.in_worker.attention.read_time_cuda import CutsLengths

        metadata_of = self._metadata_of

        class Stock:
            def __init__(self, *_: Any) -> None:
                pass

            def build(self, _: int, common: Any, fast_build: bool = False) -> Any:
                return metadata_of(getattr(module, f"{name}Metadata"), common)

        class Builder(CutsLengths, Stock):
            divided_metadata = getattr(module, f"Divided{name}Metadata")

        deployment = Deployment(
            rope_type="rerope",
            parameters=dict(METHOD.parameters),
            original_max_position_embeddings=TRAINED,
            max_model_len=4 * TRAINED,
        )
        config: Any = types.SimpleNamespace(
            additional_config={"posenc": deployment.to_mapping()},
            compilation_config=types.SimpleNamespace(
                cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY, max_cudagraph_capture_size=8
            ),
            scheduler_config=types.SimpleNamespace(max_num_seqs=8),
        )
        return Builder(None, [], config, self._device)

    def _metadata_of(self, kind: Any, common: Any) -> Any:
        requests, heads, wide = len(common.seq_lens), self.case.num_heads, self.case.head_dim
        fields = {
            **vars(common),
            "num_actual_tokens": int(common.query_start_loc[-1]),
            "slot_mapping": torch.zeros(0, dtype=torch.int64),
        }
        if self._backend == "TRITON_ATTN":
            segments = 16
            room = torch.zeros(requests, heads, segments, wide, device=self._device)
            fields |= {
                "seq_threshold_3D": requests,
                "num_par_softmax_segments": segments,
                "softmax_segm_output": room,
                "softmax_segm_max": room[..., 0].contiguous(),
                "softmax_segm_expsum": room[..., 0].contiguous(),
                "causal": True,
            }
        return kind(**fields)

    def metadata(self) -> Any:
        return self.builder.build(0, self.common)

    def attend(self, implementation: Any, metadata: Any) -> Tensor:
        out = torch.full_like(self.query, torch.nan)
        implementation.forward(self._layer, self.query, self.query, self.query, self.cache, metadata, out)
        return out

    def rows(self) -> Tensor:
        """Which rows are queries below the trained length."""
        near = [torch.arange(length - own, length) < TRAINED for length, own in self.case.requests]
        return torch.cat(near).to(self._device)

    def faults(self, *, bits: bool = True) -> list[str]:
        """What is wrong with a step.

        Args:
            bits: whether rows below the trained length must have vLLM's bits, and not only be as right.
        """
        metadata, near = self.metadata(), self.rows()
        theirs, ours = self.attend(self.stock, metadata), self.attend(self.ours, metadata)
        is_same = torch.equal(ours[near], theirs[near])
        faults = [] if is_same or not bits else ["rows below the trained length have other bits"]
        difference = (ours.cpu().double() - self.tensors.expected).square().mean().sqrt()
        size = self.tensors.expected.square().mean().sqrt()
        allowed = ATTENTION_TIMES_TORCH * 4 * torch.finfo(self.case.dtype).eps * size
        if not difference <= allowed:
            faults.append(f"rows are wrong by {difference:.2e} where {allowed:.2e} is allowed")
        return faults

    def shorten(self) -> None:
        """The next step, for a graph: other lengths at the same place, all below the trained length."""
        self.common.seq_lens.clamp_(max=TRAINED)
        self.common.max_seq_len = TRAINED
        self.metadata()

    def faults_when_replayed(self) -> list[str]:
        """What is wrong where the launches of a step with long requests run again for short ones, as in a graph."""
        captured = self.metadata()
        assert captured.near is not None
        self.shorten()
        theirs, ours = self.attend(self.stock, captured), self.attend(self.ours, captured)
        return [] if torch.equal(ours, theirs) else ["a step of short requests has other bits than vLLM's"]


CASES = {
    "lone": Case(LONE, METHOD, layout="tokens_first"),
    "mixed, with sinks": Case(MIXED, METHOD, layout="tokens_first", sinks=True, num_heads=4, num_kv_heads=2),
}


def main() -> None:
    from tests.kernels import interpreted_assembly, interpreted_calls

    interpreted_assembly.mend()
    interpreted_calls.mend()
    from posenc_runtime.kernels import ops
    from posenc_runtime.kernels.attention.read_time_attention import read_time_attention

    ops.read_time_attention = read_time_attention
    found = {name: Layer("TRITON_ATTN", case).faults() for name, case in CASES.items()}
    found["replayed"] = Layer("TRITON_ATTN", CASES["lone"]).faults_when_replayed()
    pathlib.Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
