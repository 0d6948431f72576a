"""``posenc plot``: the numbers that are drawn, and what the command refuses."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from transformers import BloomConfig
from typer.testing import CliRunner

from posenc_runtime.encodings.spec import Frequencies, RotarySpec
from posenc_runtime.kv.deployment import Deployment
from server.cli import app
from server.plots import decay, distances, style
from tests.checkpoints import save_tiny

SPEC = RotarySpec(rotary_dim=8, rope_theta=10_000.0, original_max_position_embeddings=256)
LINEAR = Deployment(rope_type="linear", scales=(1, 4), original_max_position_embeddings=256, max_model_len=1024)


def test_wavelengths_are_those_of_the_paper_and_a_linear_scale_stretches_them() -> None:
    by_hand = [2 * math.pi * 10_000 ** (2 * pair / 8) for pair in range(4)]
    assert LINEAR.frequencies(SPEC, 0).wavelengths == pytest.approx(by_hand)
    assert LINEAR.frequencies(SPEC, 1).wavelengths == pytest.approx([4 * each for each in by_hand])


def test_pairs_that_stand_still_have_no_wavelength() -> None:
    still = Deployment(
        rope_type="proportional", scales=(1, 4), original_max_position_embeddings=256, max_model_len=1024
    )
    unscaled = still.frequencies(SPEC, 0).wavelengths
    assert still.frequencies(SPEC, 1).wavelengths == unscaled[:3]


def rotated(vector: list[float], angles: list[float]) -> list[float]:
    """Each pair of components turned by an angle of its own."""
    turned = []
    for pair, angle in enumerate(angles):
        x, y = vector[2 * pair : 2 * pair + 2]
        turned += [x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)]
    return turned


@pytest.mark.parametrize("distance", [0, 1, 17, 300])
def test_a_score_is_the_product_of_rotated_vectors_over_that_at_distance_0(distance: int) -> None:
    frequencies = Frequencies(torch.tensor([1.0, 0.3, 0.01, 0.0], dtype=torch.float64), attention_factor=1.2)
    vector = [0.6, 0.8, 1.0, 0.0, -0.8, 0.6, 0.0, -1.0]
    query, key = (
        [1.2 * each for each in rotated(vector, [f * position for f in (1.0, 0.3, 0.01, 0.0)])]
        for position in (1000, 1000 - distance)
    )
    product = sum(a * b for a, b in zip(query, key, strict=True)) / sum(each * each for each in vector)
    assert decay.scores(frequencies, [distance]) == pytest.approx([product])


def test_averages_over_distances_leave_none_out_and_take_none_twice() -> None:
    frequencies = Frequencies(torch.tensor([0.1], dtype=torch.float64))
    points = decay.means(decay.scores(frequencies, range(1001)))
    middles = [x for x, _ in points]
    assert middles == sorted(middles) and middles[0] == 1 and middles[-1] < 1000
    flat = decay.means([1.0] * 1001)
    assert [value for _, value in flat] == pytest.approx([1.0] * len(flat))
    assert points[0][1] == pytest.approx(math.cos(0.1))
    last = [math.cos(0.1 * distance) for distance in range(round(2 ** (79 / 8)), 1000)]
    assert points[-1][1] == pytest.approx(sum(last) / len(last))


@pytest.mark.parametrize("leak", ["none", 8.0])
def test_far_keys_are_at_the_window_or_leak_beyond_it_and_near_ones_in_place(leak: float | str) -> None:
    turning = Deployment(
        rope_type="rerope",
        parameters={"window": 128, "page": 32, "leak": leak},
        original_max_position_embeddings=256,
        max_model_len=1024,
    )
    pages, grows = turning.pages(), 0 if leak == "none" else 1 / 8
    assert distances.seen(pages, 255) == list(range(256))
    # At 500 the window begins at key 372 - 1 + 1 = 373, in the page that begins at 352.
    by_key = distances.seen(pages, 500)[::-1]
    assert by_key[352:] == [500 - key for key in range(352, 501)]
    assert by_key[:352] == [128 + (500 - 128 - key // 32 * 32) * grows - key % 32 for key in range(352)]


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plot", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("plots")
    settings: dict[str, Any] = {
        "model": str(save_tiny(folder / "model")),
        "scaling": {"rope_type": "yarn", "scales": [1, 2, 4]},
    }
    (folder / "deployment.yaml").write_text(yaml.safe_dump(settings))
    return folder / "deployment.yaml"


@pytest.mark.parametrize("what", ["wavelengths", "decay"])
def test_a_picture_is_drawn_and_is_the_same_each_time(
    what: str, deployment: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    files = [tmp_path / name for name in ("first.png", "second.png")]
    for file in files:
        assert run(what, str(deployment), "--out", str(file)) == (0, f"wrote {file}\n", "")
    with Image.open(files[0]) as picture:
        assert picture.size == (1080, 540)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert run(what, str(deployment), "--set", "scaling.rope_type=linear", "--out", str(files[1]))[0] == 0
    assert files[0].read_bytes() != files[1].read_bytes()


def test_distances_are_drawn_where_queries_turn_and_scales_where_there_are_some(
    deployment: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file, turning = tmp_path / "a.png", ("--set", "scaling.rope_type=rerope")
    assert run("distances", str(deployment), *turning, "--out", str(file)) == (0, f"wrote {file}\n", "")
    with Image.open(file) as picture:
        assert picture.size == (1080, 540)
    status, _, said = run("distances", str(deployment), "--out", str(file))
    assert status == 2 and said.startswith("refused scaling.rope_type: must be rerope or dual_chunk, got yarn")
    status, _, said = run("wavelengths", str(deployment), *turning, "--out", str(file))
    assert status == 2 and "posenc plot distances" in said


def test_a_model_that_rotates_nothing_has_no_picture(tmp_path: pathlib.Path) -> None:
    config = BloomConfig(hidden_size=48, n_layer=2, n_head=3, seq_length=256)
    config.architectures = ["BloomForCausalLM"]
    config.save_pretrained(tmp_path / "model")
    status, _, said = run("decay", str(tmp_path / "model"), "--out", str(tmp_path / "a.png"))
    assert status == 2 and said.startswith("refused model: must have a rotary embedding") and said.count("\n") == 1


def test_a_folder_that_is_missing_is_refused_before_anything_is_read() -> None:
    status, _, said = run("wavelengths", "/no/model", "--out", "/no/folder/a.png")
    assert (status, said) == (2, "refused --out: must be in a folder that exists, got /no/folder/a.png\n")


def test_without_matplotlib_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "is_available", lambda: False)
    status, _, said = run("wavelengths", "demo")
    assert status == 2 and "pip install 'posenc[eval]'" in said and said.count("\n") == 1
