"""Single encodings against models that share nothing with them, and against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.decoder.decoder import PosencForCausalLM
from posenc_runtime.decoder.places import places
from posenc_runtime.decoder.positions import encoding
from tests import tolerance
from tests.decoder.tiny import SIZES, YARN, model, some_ids
from tests.tolerance import ENCODINGS_DIFFER, ORACLE_FLOAT64, SOME_FLOAT32_OPERATIONS


def built(position_encoding_type: str, **others: Any) -> Any:
    """An encoding by itself, with two heads of four numbers."""
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4, "hidden_size": 8}
    config = PosencConfig(**{**SIZES, **sizes, "position_encoding_type": position_encoding_type, **others})
    return encoding(position_encoding_type)(config)


def weights_without_content(position: Any, length: int) -> Tensor:
    """Attention weights ``[num_heads, length, length]`` where queries are zero: what positions do alone."""
    nothing, identity = torch.zeros(1, 2, length, length), torch.eye(length).expand(1, 2, -1, -1)
    attention: Tensor = position.attention(nothing, nothing, identity, scale=1.0)
    return attention[0]


@torch.no_grad()
@pytest.mark.parametrize(
    "rope_parameters",
    [
        pytest.param({"rope_type": "default", "rope_theta": 100.0}, id="default"),
        pytest.param({"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}, id="linear"),
        pytest.param(YARN, id="yarn"),
    ],
)
def test_rope_is_transformers_llama_with_the_same_weights(rope_parameters: dict[str, Any]) -> None:
    torch.manual_seed(0)
    shared = {**SIZES, "max_position_embeddings": 96, "attention_bias": True}
    ours = PosencForCausalLM(PosencConfig(**shared, rope_parameters=dict(rope_parameters))).eval()
    theirs = LlamaForCausalLM(LlamaConfig(**shared, rope_parameters=dict(rope_parameters))).eval()
    theirs.load_state_dict(ours.state_dict())
    ids = some_ids(2, 60)
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=tolerance.LOGIT_TINY_DECODER)


@torch.no_grad()
@pytest.mark.parametrize(("alibi_bias_max", "slopes"), [(8, (2.0**-4, 2.0**-8)), (2.0, (0.5, 0.25))])
def test_alibi_is_blooms_slope_times_the_keys_position(alibi_bias_max: float, slopes: tuple[float, float]) -> None:
    found = weights_without_content(built("alibi", alibi_bias_max=alibi_bias_max), 4)
    for head, slope in enumerate(slopes):
        for row in range(4):
            raised = [math.exp(slope * key) for key in range(row + 1)]
            expected = [value / sum(raised) for value in raised] + [0.0] * (3 - row)
            assert found[head, row].tolist() == pytest.approx(expected, abs=SOME_FLOAT32_OPERATIONS)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "weights", "bias"),
    [
        pytest.param("alibi_sqrt", {}, lambda d: -(2.0**-4) * math.sqrt(d), id="alibi_sqrt"),
        pytest.param(
            "kerple_log", {"log_r1": 1.5, "log_r2": 0.25}, lambda d: -1.5 * math.log(1 + 0.25 * d), id="kerple_log"
        ),
        pytest.param("kerple_power", {"log_r1": 1.5, "logit_r2": 1.0}, lambda d: -1.5 * d, id="kerple_power"),
    ],
)
def test_biases_are_the_formulas_of_the_stored_weights(name: str, weights: dict[str, float], bias: Any) -> None:
    position = built(name)
    for weight, value in weights.items():
        # r2 of the power kernel is twice the logistic function of what is stored.
        stored = math.log(value) if weight.startswith("log_") else math.log(value / (2 - value))
        getattr(position, weight).fill_(stored)
    last = weights_without_content(position, 5)[0, -1]
    raised = [math.exp(bias(4 - key)) for key in range(5)]
    assert last.tolist() == pytest.approx([value / sum(raised) for value in raised], abs=SOME_FLOAT32_OPERATIONS)


@torch.no_grad()
@pytest.mark.parametrize("name", ["cope", "kerple_log", "kerple_power", "learned", "shaw", "t5", "transformer_xl"])
def test_training_starts_from_finite_weights(name: str) -> None:
    torch.manual_seed(0)
    decoder = PosencForCausalLM(PosencConfig(**{**SIZES, "position_encoding_type": name}))
    for parameter, weight in decoder.named_parameters():
        if ".position." in parameter:
            assert weight.isfinite().all() and weight.abs().max() < 10, parameter
            assert weight.unique().numel() > 1 or name == "cope", parameter


@torch.no_grad()
@pytest.mark.parametrize("case", ["cope", "learned", "shaw", "t5", "transformer_xl"])
def test_an_encoding_whose_weights_are_zero_is_none(case: str) -> None:
    decoder, plain, ids = model(case), model("none"), some_ids(2, 12)
    for name, weight in decoder.named_parameters():
        if ".position." in name:
            weight.zero_()
    plain.load_state_dict({name: weight for name, weight in decoder.state_dict().items() if ".position." not in name})
    torch.testing.assert_close(decoder(ids).logits, plain(ids).logits, rtol=0, atol=tolerance.LOGIT_TINY_DECODER)


@torch.no_grad()
def test_copes_positions_count_gates_from_the_own_key_backwards() -> None:
    position = built("cope", cope_npos_max=3)
    position.pos_emb.copy_(torch.tensor([0.0, 1.0, 5.0]).expand(4, -1))
    query, nothing = torch.full((1, 2, 6, 4), 0.25), torch.zeros(1, 2, 6, 4)
    identity = torch.eye(6).expand(1, 2, -1, -1)
    # Keys of zero open every gate by half, so that they stand 3, 2.5, 2, 1.5, 1 and 0.5 positions back, at most 2.
    raised = [math.exp(logit) for logit in (5.0, 5.0, 5.0, 3.0, 1.0, 0.5)]
    last = position.attention(query, nothing, identity, scale=0.5)[0, :, -1]
    torch.testing.assert_close(last, torch.tensor([value / sum(raised) for value in raised]).expand(2, -1))


@torch.no_grad()
def test_the_two_conventions_of_cope_differ_by_the_root_of_the_head() -> None:
    draws = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 9, 4, generator=draws) for _ in range(3))
    one, divided = (built("cope", cope_qe_scale=scale, cope_npos_max=4) for scale in ("one", "head_dim"))
    one.pos_emb.normal_(generator=draws)
    divided.pos_emb.copy_(one.pos_emb)
    attended = one.attention(query, key, value, scale=0.5)
    assert not torch.allclose(attended, divided.attention(query, key, value, scale=0.5), atol=ENCODINGS_DIFFER)
    divided.pos_emb.mul_(2.0)
    torch.testing.assert_close(divided.attention(query, key, value, scale=0.5), attended)


@torch.no_grad()
def test_xpos_decays_with_the_distance_and_knows_no_place() -> None:
    position = built("xpos", xpos_scale_base=8, max_position_embeddings=20)
    here = places(0, 40, None, torch.device("cpu"))
    unit = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(1, 2, 40, -1).double()
    query, key = position.encode(unit, unit, here, position.prepare(here, torch.float64))
    for back in (0, 1, 7):
        for pair, frequency in enumerate((1.0, 0.01)):
            zeta = (pair / 2 + 0.4) / 1.4
            expected = zeta ** (back / 8) * math.cos(back * frequency)
            columns = slice(2 * pair, 2 * pair + 2)
            for place in (7, 8, 39):
                score = query[0, 0, place, columns] @ key[0, 0, place - back, columns]
                assert score.item() == pytest.approx(expected, rel=ORACLE_FLOAT64)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float16, 2266), (torch.float32, 18130), (torch.bfloat16, 18129)])
def test_xpos_refuses_positions_whose_factors_take_more_than_half_of_the_exponents(
    dtype: torch.dtype, within: int
) -> None:
    position = built("xpos", max_position_embeddings=20)
    last = 10 + within
    for length, refused in ((last + 1, False), (last + 2, True)):
        here = places(length - 1, 1, None, torch.device("cpu"))
        states = torch.ones(1, 2, 1, 4, dtype=dtype)
        if refused:
            with pytest.raises(
                ValueError, match=f"positions must be at most {within} from 10 .*got positions {length - 1}"
            ):
                position.encode(states, states, here, position.prepare(here, torch.float32))
        else:
            query, key = position.encode(states, states, here, position.prepare(here, torch.float32))
            assert query.isfinite().all() and key.isfinite().all() and query.abs().min() > 0


@torch.no_grad()
def test_sinusoids_are_added_to_embeddings_times_the_root_of_their_size() -> None:
    position = built("sinusoidal")
    embeddings = torch.full((1, 3, 8), 0.5)
    found = position.embed(embeddings, places(0, 3, None, torch.device("cpu")))
    for place in range(3):
        for column in range(8):
            angle = place / 10000 ** (column // 2 * 2 / 8)
            expected = 0.5 * math.sqrt(8) + (math.cos(angle) if column % 2 else math.sin(angle))
            assert found[0, place, column].item() == pytest.approx(expected, abs=SOME_FLOAT32_OPERATIONS)


@torch.no_grad()
def test_shaws_keys_and_values_are_clipped_at_the_last_row() -> None:
    position = built("shaw", max_relative_position=2)
    position.key_embeddings.weight.copy_(torch.tensor([[0.0], [1.0], [3.0]]).expand(-1, 4))
    position.value_embeddings.weight.copy_(torch.tensor([[10.0], [20.0], [30.0]]).expand(-1, 4))
    query = torch.full((1, 2, 4, 4), 0.25)
    nothing = torch.zeros(1, 2, 4, 4)
    last = position.attention(query, nothing, nothing, scale=0.5)[0, :, -1]
    raised = [math.exp(0.5 * logit) for logit in (3.0, 3.0, 1.0, 0.0)]
    expected = sum(value * weight for value, weight in zip((30, 30, 20, 10), raised, strict=True)) / sum(raised)
    torch.testing.assert_close(last, torch.full((2, 4), expected))


@torch.no_grad()
def test_transformer_xl_scores_are_its_four_terms() -> None:
    draws = torch.Generator().manual_seed(0)
    position = built("transformer_xl")
    for weight in (position.u, position.v, position.r_proj.weight):
        weight.normal_(generator=draws)
    query, key = (torch.randn(1, 2, 3, 4, generator=draws) for _ in range(2))
    found = position.attention(query, key, torch.eye(3)[None, None, :, :].expand(1, 2, -1, -1), scale=0.5)
    for head in range(2):
        u, v = position.u[head], position.v[head]
        logits = []
        for place in range(3):
            angles = [(2 - place) / 10000 ** (2 * i / 8) for i in range(4)]
            sinusoid = torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])
            relative = position.r_proj.weight[4 * head : 4 * head + 4] @ sinusoid
            q, k = query[0, head, 2], key[0, head, place]
            logits.append(0.5 * (q @ k + q @ relative + u @ k + v @ relative))
        torch.testing.assert_close(found[0, head, 2], torch.stack(logits).softmax(0))
