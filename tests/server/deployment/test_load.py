"""A deployment's file, the environment over it, and ``--set`` over that."""

from __future__ import annotations

import pathlib
import textwrap

import pytest

from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from posenc_runtime.vllm_adapter.settings.setting_names import TOP_LEVEL, known_names
from server.deployment.load import load
from server.deployment.settings import Settings
from server.start_up.planning import plan_settings

GOOD = """
model: some/model
max_model_len: 4096
scaling:
  rope_type: yarn
  original_max_position_embeddings: 512
  scales: [1, 2, 4, 8]
  beta_fast: 16
server: {port: 8001}
engine: {dtype: float32}
"""


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "deployment.yaml"
    path.write_text(GOOD)
    return path


def test_a_file_says_it_all(file: pathlib.Path) -> None:
    settings = load(file, environment={})
    assert settings.model == "some/model"
    assert settings.scaling.parameters == {"beta_fast": 16}
    assert settings.scaling.scales == [1, 2, 4, 8]
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8001)
    assert settings.engine == {"dtype": "float32"}


def test_the_environment_goes_over_the_file_and_set_over_the_environment(file: pathlib.Path) -> None:
    environment = {"POSENC_SCALING__HEADROOM_TOKENS": "64", "POSENC_SERVER__PORT": "9000", "POSENC_DEVICE": "cpu"}
    settings = load(file, ["server.port=9001", "engine.max_num_seqs=4"], environment)
    assert settings.scaling.headroom_tokens == 64
    assert settings.server.port == 9001
    assert settings.engine == {"dtype": "float32", "max_num_seqs": 4}
    assert settings.scaling.rope_type == "yarn"


def test_a_method_of_another_kind_needs_no_more_than_its_name(file: pathlib.Path) -> None:
    """Scales of the file are no settings of a method that turns queries, nor its window one of a method that scales."""
    turning = load(file, ["scaling.rope_type=rerope", "scaling.window=256", "scaling.page=64"], {})
    assert turning.scaling.written() == {
        **{"rope_type": "rerope", "original_max_position_embeddings": 512, "window": 256, "page": 64}
    }
    file.write_text(GOOD.replace("rope_type: yarn", "rope_type: rerope").replace("scales: [1, 2, 4, 8]", "window: 256"))
    file.write_text(file.read_text().replace("beta_fast: 16", "page: 64"))
    scaled = load(file, ["scaling.rope_type=yarn", "scaling.scales=[1, 8]"], {})
    assert scaled.scaling.written() == {
        **{"rope_type": "yarn", "original_max_position_embeddings": 512, "scales": [1.0, 8.0]}
    }


def test_what_a_method_does_not_have_is_refused_where_both_are_written(file: pathlib.Path) -> None:
    with pytest.raises(SettingRefused, match=r"scaling\.scales must be left out where rope_type is rerope, got"):
        load(file, ["scaling.rope_type=rerope", "scaling.scales=[1, 2]"], {})


def test_a_list_or_a_mapping_can_be_set(file: pathlib.Path) -> None:
    settings = load(file, ["scaling.scales=[1, 8]", "engine={dtype: bfloat16}"], {})
    assert settings.scaling.scales == [1, 8]
    assert settings.engine == {"dtype": "bfloat16"}


@pytest.mark.parametrize("text", ["1e-2", "1E-2", "1.e-2", ".1e-1", "1.0e-2", "0.01"])
def test_an_exponent_needs_no_point(file: pathlib.Path, text: str) -> None:
    file.write_text(GOOD + f"attention: {{window_tolerance: {text}}}\n")
    assert load(file, environment={}).attention.window_tolerance == 0.01
    assert load(file, [f"attention.window_tolerance={text}"], {}).attention.window_tolerance == 0.01
    assert load(file, ["model=1e-model"], {}).model == "1e-model"


def test_a_models_path_that_starts_with_a_dot_is_relative_to_the_file(file: pathlib.Path) -> None:
    file.write_text("model: ../weights")
    assert load(file, environment={}).model == str(file.parent.parent / "weights")


def test_a_keys_file_that_starts_with_a_dot_is_beside_the_file_and_may_be_a_link(file: pathlib.Path) -> None:
    file.write_text("model: x\naccess: {keys_file: ./keys, administration: off}\n")
    (file.parent / "keys").symlink_to("elsewhere")
    access = load(file, environment={}).access
    assert (access.keys_file, access.administration) == (str(file.parent / "keys"), "off")


def test_keys_in_the_environment_are_no_setting(file: pathlib.Path) -> None:
    assert load(file, environment={"POSENC_API_KEYS": "alice: secret"}) == load(file, environment={})


def test_the_served_length_defaults_to_what_the_largest_scale_reaches(file: pathlib.Path) -> None:
    file.write_text(GOOD.replace("max_model_len: 4096\n", ""))
    assert plan_settings(load(file, environment={}), is_read=False).deployment.max_model_len == 4096


def refusal(path: pathlib.Path, text: str, overrides: list[str] | None = None, **environment: str) -> str:
    path.write_text(textwrap.dedent(text))
    with pytest.raises(SettingRefused) as caught:
        plan_settings(load(path, overrides, environment), is_read=False)
    return str(caught.value)


# What is replaced in the good file, by what, and what is said then.
CHANGED = {
    "unknown-scaling-key": (
        "beta_fast",
        "beta_fats",
        "scaling.beta_fats: is not a known setting, got 16; did you mean beta_fast?",
    ),
    "key-of-another-section": (
        "beta_fast: 16",
        "max_model_len: 16",
        "scaling.max_model_len: is not a known setting, got 16; did you mean max_model_len at the top level?",
    ),
    "misspelt-scaling-key": (
        "  beta_fast: 16",
        "  headroom: 64",
        "scaling.headroom: is not a known setting, got 64; did you mean headroom_tokens?",
    ),
    "factor-instead-of-scales": (
        "  beta_fast: 16",
        "  factor: 4.0",
        "scaling.factor must come with old_context_len, because both say how a checkpoint was tuned, got 4.0: if you "
        "mean the scale of long requests, leave factor out, and list the scale in scales, as in [1, 4]",
    ),
    "parameter-of-another-method": ("yarn", "linear", "scaling.beta_fast: is not a known setting, got 16"),
    "unknown-method": ("yarn", "yarm", "rerope, yarn, got 'yarm'; did you mean yarn?"),
    "wrong-type": ("max_model_len: 4096", "max_model_len: many", "max_model_len: must be a valid integer, got 'many'"),
    "number-as-text": (
        "max_model_len: 4096",
        "max_model_len: '4096'",
        "max_model_len: must be a valid integer, got '4096'",
    ),
    "parameter-of-wrong-type": (
        "beta_fast: 16",
        "beta_fast: fast",
        "scaling.beta_fast: must be a valid number, got 'fast'",
    ),
    "parameter-out-of-range": (
        "beta_fast: 16",
        "beta_fast: 0.5",
        "scaling.beta_fast must be at least beta_slow 1.0, got 0.5",
    ),
    "scales-not-ascending": ("[1, 2, 4, 8]", "[1, 4, 2, 8]", "scaling.scales must ascend, got [1.0, 4.0, 2.0, 8.0]"),
    "scales-not-from-1": ("[1, 2, 4, 8]", "[2, 8]", "scaling.scales must start at 1, got [2.0, 8.0]"),
    "no-scales": ("[1, 2, 4, 8]", "[]", "scaling.scales must start at 1, got []"),
    "scales-too-small": (
        "[1, 2, 4, 8]",
        "[1, 2]",
        "scaling.scales must cover max_model_len 4096, but the largest, 2, reaches only 1024 tokens",
    ),
    "scales-not-numbers": ("[1, 2, 4, 8]", "[1, two]", "scaling.scales.1: must be a valid number, got 'two'"),
    "scale-not-finite": ("[1, 2, 4, 8]", "[1, .inf]", "scaling.scales.1: must be a finite number, got inf"),
    "parameter-not-finite": (
        "beta_fast: 16",
        "attention_factor: .nan",
        "scaling.attention_factor: must be a finite number, got nan",
    ),
    "negative-length": (
        "max_model_len: 4096",
        "max_model_len: -1",
        "max_model_len: must be greater than or equal to 1, got -1",
    ),
    "no-headroom": (
        "  beta_fast: 16",
        "  headroom_tokens: 0",
        "scaling.headroom_tokens: must be greater than or equal to 1, got 0",
    ),
    "unknown-crossing": (
        "  beta_fast: 16",
        "  on_crossing: hope",
        "scaling.on_crossing: must be 'rerotate', 'recompute' or 'pin', got 'hope'",
    ),
    "beyond-trained-with-scaling": (
        "  beta_fast: 16",
        "  allow_beyond_trained: true",
        "scaling.allow_beyond_trained is only for scales [1], got [1.0, 2.0, 4.0, 8.0]",
    ),
    "no-model": ("model: some/model\n", "", "model: must be given"),
    "port-out-of-range": ("8001", "80010", "server.port: must be less than or equal to 65535, got 80010"),
    "section-is-a-value": ("engine: {dtype: float32}", "engine: 5", "engine: must be a mapping of settings, got 5"),
    "trained-length-unknown": (
        "  original_max_position_embeddings: 512\n",
        "",
        "scaling.original_max_position_embeddings: must be given",
    ),
}
BAD = {
    "unknown-key": (GOOD + "modell: x", "modell: is not a known setting, got 'x'; did you mean model?"),
    "key-of-a-section-outside-of-it": (
        GOOD + "tensor_parallel_size: 2",
        "tensor_parallel_size: is not a known setting, got 2; did you mean engine.tensor_parallel_size?",
    ),
    "method-and-key-unknown": (
        GOOD.replace("yarn", "yarm") + "scales: [1, 2]",
        "scales: is not a known setting, got [1, 2]; did you mean scaling.scales?",
    ),
    "misspelt-attention-key": (
        GOOD + "attention: {window_tolerence: 0.1}",
        "attention.window_tolerence: is not a known setting, got 0.1; did you mean window_tolerance?",
    ),
    "nothing-to-be-read": (
        GOOD + "attention: {window_tolerance: 1.0}",
        "attention.window_tolerance: must be less than 1, got 1.0",
    ),
    "key-like-no-other": (GOOD + "zzz: 1", "zzz: is not a known setting, got 1"),
    "factor-without-a-method": (
        "model: a/b\nscaling: {factor: 2}",
        "got 2; rope_type default does not scale: choose another",
    ),
    "scale-beyond-all-tokens": (
        GOOD.replace("[1, 2, 4, 8]", "[1, 1e300]").replace("max_model_len: 4096", ""),
        "scaling.scales must reach at most 2147483647 tokens",
    ),
    "no-name": (GOOD + "served_model_name: ''\n", "served_model_name: String should have at least 1 character, got ''"),
    "default-with-scales": (
        GOOD.replace("yarn", "default").replace("  beta_fast: 16", ""),
        "scaling.scales must be [1] when rope_type is default",
    ),
    "section-is-empty": (
        "model: some/model\nscaling:\n",
        "scaling: must be a mapping of settings, got nothing: leave the section out, or give it settings",
    ),
    "engine-is-empty": ("model: some/model\nengine:\n", "engine: must be a mapping of settings, got nothing"),
    "key-not-a-text": (GOOD + "7: x", "a key must be a text, got 7: put it in quotes"),
    "key-twice": (GOOD + "max_model_len: 5", "a key must be given once, got max_model_len twice: remove one"),
    "not-yaml": ("model: [", "must be valid YAML: "),
    "not-a-mapping": ("- model", "must be a mapping of settings that names at least model, got list"),
    "empty": ("", "must be a mapping of settings that names at least model, got nothing"),
}


@pytest.mark.parametrize(("old", "new", "rule"), CHANGED.values(), ids=CHANGED.keys())
def test_a_setting_that_is_changed_for_the_worse_is_refused_by_its_path(
    old: str, new: str, rule: str, tmp_path: pathlib.Path
) -> None:
    assert old in GOOD and rule in refusal(tmp_path / "bad.yaml", GOOD.replace(old, new))


@pytest.mark.parametrize(("text", "rule"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_refused_with_the_keys_path_the_rule_and_the_value(
    text: str, rule: str, tmp_path: pathlib.Path
) -> None:
    assert rule in refusal(tmp_path / "bad.yaml", text)


def test_the_names_that_refusals_know_are_those_of_the_settings() -> None:
    assert known_names("default")[TOP_LEVEL] == Settings.model_fields.keys()


def test_all_that_is_wrong_is_said_at_once(tmp_path: pathlib.Path) -> None:
    text = GOOD.replace("4096", "many").replace("8001", "80010") + "modell: x"
    assert len(refusal(tmp_path / "bad.yaml", text).splitlines()) == 3


def test_a_file_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        SettingRefused, match=r"absent\.yaml: must be a file that can be read: No such file or directory"
    ):
        load(tmp_path / "absent.yaml", environment={})


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (["scaling.headroom_tokens"], "--set scaling.headroom_tokens: must be PATH=VALUE"),
        (["=5"], "--set =5: must be PATH=VALUE"),
        (["scaling.headroom_tokens=[1"], "--set scaling.headroom_tokens: must be a YAML value, got '[1'"),
        (["scaling.headroom_tokens=much"], "scaling.headroom_tokens: must be a valid integer, got 'much'"),
    ],
)
def test_a_bad_override_is_refused(overrides: list[str], rule: str, tmp_path: pathlib.Path) -> None:
    assert rule in refusal(tmp_path / "good.yaml", GOOD, overrides)


@pytest.mark.parametrize(
    ("environment", "rule"),
    [
        (
            {"POSENC_SCALE": "2"},
            "POSENC_SCALE: the part after POSENC_ must begin with one of .*, got scale; did you mean "
            "POSENC_SCALING__SCALES?",
        ),
        (
            {"POSENC_API_KEY": "x"},
            "POSENC_API_KEY: the part after POSENC_ must begin with one of .*; did you mean POSENC_SERVER__API_KEY?",
        ),
        ({"POSENC_SERVER__PORT": "high"}, "server.port: must be a valid integer, got 'high'"),
        ({"POSENC_SCALING": "1", "POSENC_SCALING__SCALES": "[1]"}, "scaling must be a section, got the value 1 from"),
    ],
)
def test_a_bad_variable_is_refused(environment: dict[str, str], rule: str, tmp_path: pathlib.Path) -> None:
    import re

    pattern = re.escape(rule).replace(r"\.\*", ".*")
    assert re.search(pattern, refusal(tmp_path / "good.yaml", GOOD, None, **environment))


@pytest.mark.parametrize(("text", "value"), [("on", "on"), ("off", "off"), ("auto", "auto"), ('"on"', "on")])
def test_on_and_off_are_what_they_say(text: str, value: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(GOOD + f"attention: {{fused_rotary: {text}}}\n")
    assert load(file, environment={}).attention.fused_rotary == value
    file.write_text(GOOD)
    assert load(file, [f"attention.fused_rotary={text}"], {}).attention.fused_rotary == value
    assert load(file, environment={"POSENC_ATTENTION__FUSED_ROTARY": text}).attention.fused_rotary == value
