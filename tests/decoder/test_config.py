"""A configuration means one model: keys of other encodings, misspelled ones and values out of range are refused."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.decoder.positions import available, encoding
from tests.decoder.tiny import CASES, SIZES


@pytest.mark.parametrize("case", CASES)
def test_a_configuration_is_written_and_read_back(case: str, tmp_path: pathlib.Path) -> None:
    config = PosencConfig(**SIZES, **CASES[case])
    config.save_pretrained(tmp_path)
    again = PosencConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "posenc"
    own = set(encoding(config.position_encoding_type).defaults)
    foreign = {key for name in available() for key in encoding(name).defaults} - own
    assert own <= set(written)
    assert not foreign & set(written)


def test_heads_follow_from_the_sizes() -> None:
    config = PosencConfig(hidden_size=96, num_attention_heads=6)
    assert (config.head_dim, config.num_key_value_heads) == (16, 6)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}


def test_two_configurations_share_no_parameters() -> None:
    PosencConfig().rope_parameters["rope_theta"] = 7.0
    assert PosencConfig().rope_parameters["rope_theta"] == 10000.0


def test_keys_that_others_leave_empty_mean_nothing() -> None:
    config = PosencConfig(
        position_encoding_type="alibi", cope_npos_max=None, rope_parameters=None, xpos_scale_base=None
    )
    assert not hasattr(config, "cope_npos_max")
    assert not hasattr(PosencConfig(position_encoding_type="cope", cope_sep_key=False), "cope_sep_key")


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": parameters}


@pytest.mark.parametrize(
    ("chosen", "given", "message"),
    [
        pytest.param("ropes", {}, "must be one of .*alibi.*xpos.*, got 'ropes'", id="unknown encoding"),
        pytest.param(
            "rope", {"alibi_bias_max": 8.0}, "alibi_bias_max belongs to .* alibi and .*alibi_sqrt", id="alibi's"
        ),
        pytest.param(
            "alibi",
            rope(rope_theta=1e4),
            "rope_parameters belongs to .* rope, got .* leave rope_parameters out",
            id="rope's",
        ),
        pytest.param("none", {"cope_val_gates": True}, "cope_val_gates belongs to", id="cope's"),
        pytest.param(
            "rope", {"rope_theta": 1e4}, "rope_theta is not a key of any .*'rope' takes rope_par", id="old key"
        ),
        pytest.param("cope", {"cope_npos": 32}, "cope_npos is not a key of any .*cope_npos_max", id="misspelled"),
        pytest.param(
            "cope", {"cope_sep_key": True}, "cope_sep_key must be left out, got True: .*separate key", id="sep key"
        ),
        pytest.param("cope", {"cope_val_gates": True}, "cope_val_gates must be left out", id="value gates"),
        pytest.param("cope", {"cope_qe_scale": 1.0}, "cope_qe_scale must be one of 'one', 'head_dim'", id="qe scale"),
        pytest.param("cope", {"cope_npos_max": 1}, "cope_npos_max must be a whole number of at least 2", id="npos"),
        pytest.param("cope", {"cope_shared": "no"}, "cope_shared must be one of False, True", id="shared"),
        pytest.param("alibi", {"alibi_bias_max": 0}, "alibi_bias_max must be a finite number above 0", id="flat"),
        pytest.param("alibi_sqrt", {"alibi_bias_max": "8"}, "finite number above 0, got '8'", id="text"),
        pytest.param("t5", {"relative_attention_num_buckets": 1}, "at least 2, got 1", id="one bucket"),
        pytest.param("t5", {"relative_attention_max_distance": 16}, "at least 17, got 16", id="buckets do not fit"),
        pytest.param("shaw", {"max_relative_position": 0}, "max_relative_position must be", id="no distance"),
        pytest.param("xpos", {"xpos_scale_base": float("nan")}, "xpos_scale_base must be", id="not a number"),
        pytest.param("xpos", {"head_dim": 7}, "head_dim must be even, got 7: xpos rotates pairs", id="odd xpos"),
        pytest.param("rope", {"head_dim": 7}, "head_dim must be even, got 7: rope rotates pairs", id="odd rope"),
        pytest.param("sinusoidal", {"hidden_size": 33}, "hidden_size must be even", id="odd sinusoid"),
        pytest.param("transformer_xl", {"hidden_size": 33}, "hidden_size must be even", id="odd distances"),
        pytest.param(
            "rope",
            rope(rope_type="dynamic", factor=2.0),
            "rope_type .* one of 'base', 'clipped', 'default', 'linear', 'mrrope'",
            id="dynamic",
        ),
        pytest.param(
            "rope",
            rope(rope_type="llama3", factor=8.0),
            "rope_type .* one of 'base', 'clipped', 'default', 'linear', 'mrrope'",
            id="llama3",
        ),
        pytest.param("rope", rope(rope_type="yarn"), "factor in rope_parameters must be given", id="no factor"),
        pytest.param(
            "rope", rope(rope_type="default", factor=2.0), "left out with rope_type 'default'", id="factor of none"
        ),
        pytest.param("rope", rope(rope_type="linear", factor=0.5), "factor .* at least 1, got 0.5", id="shrinking"),
        pytest.param(
            "rope", rope(rope_type="linear", factor=2.0, beta_fast=1), "of rope_type 'linear' and no others", id="beta"
        ),
        pytest.param("rope", rope(partial_rotary_factor=0.5), "of rope_type 'default' and no others", id="partial"),
        pytest.param("rope", {"num_key_value_heads": 3}, "multiple of num_key_value_heads 3.*got 4", id="groups"),
        pytest.param("rope", {"num_hidden_layers": 0}, "num_hidden_layers must be a whole number", id="no layer"),
        pytest.param("rope", {"num_attention_heads": "4"}, "num_attention_heads must be a whole number", id="heads"),
        pytest.param("rope", {"hidden_act": "swish2"}, "hidden_act must be one of", id="activation"),
        pytest.param("rope", {"rms_norm_eps": 0}, "rms_norm_eps must be", id="epsilon"),
        pytest.param("rope", {"mlp_bias": 2}, "mlp_bias must be one of False, True", id="switch"),
    ],
)
def test_what_does_not_mean_one_model_is_refused(chosen: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PosencConfig(**{**SIZES, "position_encoding_type": chosen, **given})
