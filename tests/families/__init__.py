"""A tiny checkpoint for each kind of model: real architectures, random weights, made on the spot."""

from __future__ import annotations

import pathlib

from tests.families import latent, layers, recurrent, saving, scaled, windows
from tests.families.family import Family

FAMILIES: dict[str, Family] = layers.FAMILIES | windows.FAMILIES | recurrent.FAMILIES | latent.FAMILIES | scaled.FAMILIES


def make(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Save the checkpoint of a family into a new folder: the same weights each time.

    Returns:
        The folder.
    """
    return saving.save(folder, FAMILIES[name])
