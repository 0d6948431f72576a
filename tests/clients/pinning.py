"""Chooses the newest releases for the environments of clients, and writes them into ``releases``."""

from __future__ import annotations

import datetime
import json
import pathlib
import shutil
import subprocess
import sys

from tests.clients.clients import FOLDER, Client

_WITHOUT_TORCH = FOLDER / "releases" / "without_torch.txt"


def pin(client: Client) -> None:
    """Write the releases of a client, with the day in their head."""
    if client.is_of_npm:
        _lock(client)
    elif client.asked_for:
        _compile(client)


def _compile(client: Client) -> None:
    uv = shutil.which("uv") or str(pathlib.Path(sys.executable).with_name("uv"))
    options = ["--no-annotate", "--no-header", "--python-version", "3.11", "--override", str(_WITHOUT_TORCH)]
    chosen = subprocess.run(
        [uv, "pip", "compile", "--quiet", *options, "-"],
        input="\n".join(client.asked_for),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    today = datetime.date.today().isoformat()
    head = f"# {', '.join(client.asked_for)} on {today}: written by `python -m tests.clients --pin`\n"
    client.releases.write_text(head + chosen, encoding="utf-8")


def _lock(client: Client) -> None:
    folder = client.releases
    folder.mkdir(exist_ok=True)
    (folder / "package-lock.json").unlink(missing_ok=True)
    today = datetime.date.today().isoformat()
    about = {"private": True, "description": f"The newest on {today}: written by python -m tests.clients --pin"}
    (folder / "package.json").write_text(json.dumps(about), encoding="utf-8")
    quiet = ("--package-lock-only", "--save-exact", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    subprocess.run(["npm", "install", *quiet, *client.asked_for], cwd=folder, check=True)
