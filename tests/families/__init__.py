"""A tiny checkpoint for each kind of model: real architectures, random weights, made on the spot."""

from __future__ import annotations

import pathlib

from tests.families import latent, layers, recurrent, saving, scaled, tiles, twins, vision, windows
from tests.families.family import Family

_KINDS = (layers, windows, recurrent, latent, scaled, vision, tiles, twins)
FAMILIES: dict[str, Family] = {name: family for kind in _KINDS for name, family in kind.FAMILIES.items()}


def make(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Save the checkpoint of a family into a new folder: the same weights each time.

    Returns:
        The folder.
    """
    return saving.save(folder, FAMILIES[name])
