"""What stands between rotating and attending in a model's source is found before attention is let to rotate."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import pytest

from posenc_runtime.vllm_adapter.checkpoint import own_models
from posenc_runtime.vllm_adapter.checkpoint.model_code import handover


@pytest.fixture(scope="module", autouse=True)
def our_architectures() -> None:
    own_models.register()


@pytest.mark.parametrize(
    "architecture",
    [
        "LlamaForCausalLM",
        "MistralForCausalLM",  # multiplies queries by one factor a token
        "MixtralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",  # normalises heads before rotating
        "Qwen3MoeForCausalLM",
        "Phi3ForCausalLM",  # derives from Llama, in a file of its own
        "GPTJForCausalLM",
        "GptOssForCausalLM",
        "BaichuanForCausalLM",
    ],
)
def test_architectures_whose_rotated_states_go_straight_to_attention_are_let_through(architecture: str) -> None:
    assert handover.obstacle(architecture) is None


@pytest.mark.parametrize(
    ("architecture", "obstacle"),
    [
        ("Llama4ForCausalLM", r"`if self\.rotary_emb is not None:` in .*llama4"),
        ("DeepseekV2ForCausalLM", r"` in vllm\..*deepseek_v2"),
        ("PosencForCausalLM", r"`if self\.rotary_emb is not None:` in posenc_runtime"),
        ("MPTForCausalLM", "its source has no call of the rotary embedding"),
        ("NobodyHeardOfForCausalLM", "its source has no call of the rotary embedding"),
    ],
)
def test_architectures_with_something_in_between_are_named_with_it(architecture: str, obstacle: str) -> None:
    found = handover.obstacle(architecture)
    assert found is not None
    assert re.search(obstacle, found), found


IN_BETWEEN = [
    pytest.param("attn_output = self.attn(q, k, v)", None, id="nothing"),
    pytest.param("q = q.view(-1, 8)\nv = v * 2\nattn_output = self.attn(q, k, v)", None, id="views"),
    pytest.param("q = self.q_norm(q)\nattn_output = self.attn(q, k, v)", "q = self.q_norm(q)", id="norm"),
    pytest.param("k *= self.k_scale\nattn_output = self.attn(q, k, v)", "k *= self.k_scale", id="in-place"),
    pytest.param("q[..., 4:] = pe\nattn_output = self.attn(q, k, v)", "q[..., 4:] = pe", id="part"),
    pytest.param("q = q * self.scale\nattn_output = self.attn(q, k, v)", "q = q * self.scale", id="unknown-factor"),
    pytest.param("attn_output = self.attn(k, q, v)", "attn_output = self.attn(k, q, v)", id="other-states"),
    pytest.param("return k", "q, k = self.rotary_emb(positions, q, k)", id="no-attention"),
    pytest.param(
        "if self.grows:\n    s = self._get_llama_4_attn_scale(positions)\n    q = (q * s).to(q.dtype)\n"
        "attn_output = self.attn(q, k, v)",
        None,
        id="factor-a-token",
    ),
]


@pytest.mark.parametrize(("after", "statement"), IN_BETWEEN)
def test_what_changes_rotated_states_is_told_from_what_does_not(
    after: str, statement: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "q, k = self.rotary_emb(positions, q, k)\n" + after
    source = "class Attention:\n    def forward(self, positions, q, k, v):\n" + textwrap.indent(body, " " * 8)

    def sources(_: str) -> Iterator[tuple[str, str]]:
        yield "models.made_up", source

    monkeypatch.setattr(handover, "sources", sources)
    monkeypatch.setattr(handover, "module_of", lambda _: "models.made_up")
    expected = None if statement is None else f"`{statement}` in models.made_up"
    assert handover.obstacle.__wrapped__("MadeUpForCausalLM") == expected
