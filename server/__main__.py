"""``python -m server`` is ``posenc``."""

from server.cli import app

app()
