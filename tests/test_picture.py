"""What the picture of README and docs is drawn from, and how."""

from __future__ import annotations

import pathlib
import struct

from tests.benchmarks.drawing import colours, draw
from tests.benchmarks.recording import BlockLevels, Recording, Request


def test_block_levels_are_read_from_the_metrics_and_summed_over_engines() -> None:
    levels = BlockLevels()
    levels.add(0.0, 'posenc_kv_blocks{engine="0",scale="1"} 3.0\n')
    levels.add(
        0.5,
        'posenc_kv_blocks{engine="0",scale="1"} 2.0\nposenc_kv_blocks{engine="1",scale="1"} 5.0\n'
        'posenc_kv_blocks{engine="0",scale="8"} 9.0\nvllm_other{scale="1"} 4.0\n',
    )
    assert levels.times == [0.0, 0.5]
    assert levels.by_scale == {"1": [3.0, 7.0], "8": [0.0, 9.0]}


def test_the_picture_is_a_png_of_1200_by_600(tmp_path: pathlib.Path) -> None:
    long = Request("long request", "", 3200, 50, 0.0, [1.0 + 0.1 * index for index in range(50)], 8.0)
    short = Request("short request", "", 200, 20, 2.0, [2.1 + 0.1 * index for index in range(20)], 1.0)
    levels = BlockLevels([0.0, 1.0, 6.5], {"1": [0.0, 7.0, 0.0], "2": [0.0] * 3, "8": [100.0, 110.0, 0.0]})
    draw(Recording(long, short, levels), tmp_path / "new" / "picture.png", title="A title")
    header = (tmp_path / "new" / "picture.png").read_bytes()[:24]
    assert struct.unpack(">II", header[16:24]) == (1200, 600)


def test_every_scale_has_a_colour_of_its_own_and_one_alone() -> None:
    long, short = Request("long", "", 1, 1, scale=8.0), Request("short", "", 1, 1, scale=None)
    found = colours(Recording(long, short, BlockLevels([], {"1": [], "2": [], "4": [], "8": []})))
    assert list(found) == ["1", "2", "4", "8", "none"]
    assert len(set(found.values())) == len(found)
