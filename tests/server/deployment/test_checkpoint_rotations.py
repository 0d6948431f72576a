"""Checkpoints that have a rotation of their own: what a command says of it, and which it refuses."""

from __future__ import annotations

import json
import pathlib

import pytest

from server.deployment.settings import Settings
from server.start_up.planning import plan_settings
from tests.checkpoints import save_tiny
from tests.server.command import SCALING, run

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + 0.01 * pair for pair in range(16)],
    "long_factor": [1.0 + 2.0 * pair for pair in range(16)],
    "original_max_position_embeddings": 256,
}


@pytest.fixture(scope="module")
def longrope(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_tiny(
        tmp_path_factory.mktemp("longrope"), "phi3", max_position_embeddings=2048, rope_parameters=LONGROPE,
        original_max_position_embeddings=256, head_dim=32, hidden_size=128, num_key_value_heads=4,
    )  # fmt: skip


def test_a_longrope_checkpoint_says_its_own_factors_and_trained_length(
    longrope: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    settings: dict[str, object] = {"model": str(longrope), "scaling": {"rope_type": "longrope", "scales": [1, 8]}}
    status, out, _ = run(tmp_path, settings, "check")
    assert status == 0
    assert "trained on 256 tokens, serves 2048; longrope at scales 1, 8" in out
    # sqrt(1 + ln 8 / ln 256) at both; the slowest pair goes from a factor of 1.15 to one of 31
    assert out.count("1.1726") == 2 and "divided by 26.96" in out
    parameters = plan_settings(Settings.model_validate(settings)).deployment.parameters
    assert parameters["short_factor"][:2] == [1.0, 1.01]
    assert parameters["attention_factor"] == pytest.approx(1.1726, abs=5e-5)
    # a shorter trained length is the deployment's own: what scale 1 is stays the checkpoint's
    sooner = {"rope_type": "longrope", "scales": [1, 16], "original_max_position_embeddings": 128}
    status, out, _ = run(tmp_path, settings | {"scaling": sooner}, "check")
    assert status == 0 and out.count("1.1726") == 2


@pytest.mark.parametrize(
    ("scaling", "rule"),
    [
        ({"rope_type": "yarn", "scales": [1, 8]}, "rope_type yarn is for checkpoints whose own rope_type is default"),
        (
            {"rope_type": "longrope", "scales": [1, 8], "short_factor": [1.0]},
            "refused scaling.short_factor must hold 16 numbers, one for each pair, got 1",
        ),
        (
            {"rope_type": "longrope", "scales": [1, 8], "short_mscale": 3.0},
            "(attention factor 3.0, in the checkpoint 1.1726039399558574): take the",
        ),
        (
            {"rope_type": "longrope", "scales": [1, 8], "factor": 2.0},
            "refused scaling.factor must be left out, because the settings or the checkpoint give attention_factor",
        ),
        (
            {"rope_type": "longrope", "scales": [1, 8], "short_factor": [2.0] * 16},
            "scale 1 must rotate exactly as the checkpoint does",
        ),
        (
            {"rope_type": "longrope", "scales": [1, 8], "original_max_position_embeddings": 2048},
            "must not exceed the checkpoint's trained length 256, got 2048",
        ),
    ],
)
def test_what_does_not_fit_a_longrope_checkpoint_is_refused(
    scaling: dict[str, object], rule: str, longrope: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    status, _, err = run(tmp_path, {"model": str(longrope), "scaling": scaling}, "check")
    assert status == 2 and rule in err


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_tiny(tmp_path_factory.mktemp("llama3"), rope_parameters=LLAMA3)


def test_a_llama_3_1_says_its_own_rotation_and_is_trained_on_all_that_it_serves(
    llama3: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    settings: dict[str, object] = {"model": str(llama3), "scaling": {"rope_type": "llama3", "scales": [1, 2]}}
    status, out, _ = run(tmp_path, settings, "check")
    assert status == 0
    assert "trained on 256 tokens, serves 512; llama3 at scales 1, 2" in out
    own = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "old_context_len": 64}
    assert plan_settings(Settings.model_validate(settings)).deployment.parameters == own


@pytest.mark.parametrize(
    ("scaling", "rule"),
    [
        (
            {"rope_type": "yarn", "scales": [1, 2]},
            "own rope_type is default or yarn, but this one's is llama3: choose one of l",
        ),
        (
            {"rope_type": "llama3", "scales": [1, 2], "original_max_position_embeddings": 64},
            "refused scaling.original_max_position_embeddings must exceed old_context_len 64",
        ),
    ],
)
def test_what_does_not_fit_a_llama_3_1_is_refused(
    scaling: dict[str, object], rule: str, llama3: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    status, _, err = run(tmp_path, {"model": str(llama3), "scaling": scaling}, "check")
    assert status == 2 and rule in err


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}


def test_a_checkpoint_tuned_with_yarn_is_scaled_from_all_that_it_was_tuned_for(tmp_path: pathlib.Path) -> None:
    tuned = save_tiny(tmp_path / "tuned", rope_parameters=YARN)
    status, out, _ = run(tmp_path, {"model": str(tuned), "scaling": {"rope_type": "auto"}}, "check")
    assert status == 0
    assert "trained on 256 tokens" in out and "yarn at scales 1, 2, 4" in out
    assert (
        out.count("1.1386") == 1 and out.count("1.2773") == 1
    )  # 0.1 ln 4 + 1 at scale 1, and 0.1 ln 16 + 1 at scale 4
    assert "take it out" not in out


def test_yarn_that_was_added_by_hand_is_told_with_what_to_do_instead(tmp_path: pathlib.Path) -> None:
    by_hand = save_tiny(tmp_path / "by-hand", rope_parameters=YARN, max_position_embeddings=64)
    status, out, _ = run(tmp_path, {"model": str(by_hand), "scaling": {"rope_type": "auto"}}, "check")
    said = " ".join(out.split())
    assert status == 0 and "trained on 256 tokens" in said
    assert "YaRN of factor 4, which changes the rotation of every request" in said
    assert "set scaling.scales to [1, 4]. Requests of up to 64 tokens then get the answers of the model" in said


def test_a_wrong_trained_length_is_the_cause_where_it_makes_the_scales_too_small(
    llama3: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    scaling = {"rope_type": "llama3", "scales": [1, 2], "original_max_position_embeddings": 64}
    status, _, err = run(tmp_path, {"model": str(llama3), "max_model_len": 256, "scaling": scaling}, "check")
    assert status == 2 and "got 64: leave original_max_position_embeddings out" in err and "larger scale" not in err


def test_check_refuses_a_checkpoint_that_cannot_be_scaled(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, _, err = run(tmp_path, {"model": str(tmp_path), "scaling": SCALING}, "check")
    assert status == 2
    known = "default, dynamic, linear, llama3, longrope, yarn"
    assert f"refused model: posenc scales checkpoints whose own rope_type is one of {known}, got ntk" in err


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"partial_rotary_factor": 0.0}, "partial_rotary_factor must be above 0 and at most 1, got 0.0"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be above 0 and at most 1, got 1.5"),
        ({"partial_rotary_factor": 0.04}, "rotary_dim must be even and at least 2, got 1"),
        (
            {"partial_rotary_factor": "half"},
            'rope_parameters.partial_rotary_factor of config.json must be a finite number, got "half": correct',
        ),
        ({"rope_theta": 1.0}, "rope_theta must be greater than 1, got 1.0"),
        (LONGROPE | {"attention_factor": 1.5}, "which give an attention factor of 1.1726, got 1.5"),
        (LONGROPE | {"original_max_position_embeddings": 1}, "does not describe a rotary embedding"),
        (
            LONGROPE | {"factor": "8"},
            'rope_parameters.factor of config.json must be a finite number, got "8": write it',
        ),
    ],
)
def test_check_refuses_a_checkpoint_whose_rotation_cannot_be_made(
    changed: dict[str, object], rule: str, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = json.loads((model / "config.json").read_text())
    config["rope_parameters"] = config["rope_parameters"] | changed
    config["max_position_embeddings"] = 2048
    settings = {
        "model": str(tmp_path),
        "scaling": {"rope_type": config["rope_parameters"]["rope_type"], "scales": [1, 2]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, out, err = run(tmp_path, settings, "check")
    assert status == 2 and not out
    assert "refused model: " in err and rule in err
