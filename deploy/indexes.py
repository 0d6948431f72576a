"""Tells uv where pip is set to look for packages, or says which index cannot be reached, and what to set. Decision 64.

    indexes.py                prints the settings, for a shell
    indexes.py URL PACKAGE    only tries this index, which has this package

Where an index cannot be reached, that alone is printed, and the exit status is 1.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

UV_NAMES = {
    "index-url": "UV_INDEX_URL",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_OFFLINE",
    "no-cache-dir": "UV_NO_CACHE",
    "constraint": "UV_CONSTRAINT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}
# They say which releases may be installed, and uv has no equal variable.
PIP_ALONE = ("no-binary", "only-binary", "uploaded-prior-to")
# Here uv may be told of an index that nothing else knows of.
UV_FILES = ("/etc/uv/uv.toml", "~/.config/uv/uv.toml")

INSTEAD = "PIP_INDEX_URL or UV_DEFAULT_INDEX to another, or PIP_FIND_LINKS to a folder of wheels and PIP_NO_INDEX=1"
INSTEAD_FOR = "PIP_EXTRA_INDEX_URL to another that has {}, or PIP_FIND_LINKS to a folder with its wheel"


def pip_settings(config: str) -> dict[str, str]:
    """What `pip config list` says of installing: a section that comes later in this order counts."""
    order = ("global", "install", ":env:")
    lines = [found for section in order for found in re.findall(rf"^{section}\.([a-z-]+)=(.+)$", config, re.MULTILINE)]
    return {name: ast.literal_eval(value) for name, value in lines}


def uv_settings(pip: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that tell uv the same."""
    told = {variable: " ".join(pip[name].split()) for name, variable in UV_NAMES.items() if name in pip}
    if "UV_FIND_LINKS" in told:
        told["UV_FIND_LINKS"] = told["UV_FIND_LINKS"].replace(" ", ",")
    # To pip all indexes are equal; uv would take a package from the first that has it.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **told} if "UV_EXTRA_INDEX_URL" in told else told


def indexes(settings: Mapping[str, str]) -> list[str]:
    """The addresses that will be asked for packages."""
    if settings.get("UV_OFFLINE"):
        return []
    first = settings.get("UV_DEFAULT_INDEX") or settings.get("UV_INDEX_URL")
    if not first and not any(Path(file).expanduser().exists() for file in UV_FILES):
        first = import_module("pip._internal.models.index").PyPI.simple_url
    names = ("UV_EXTRA_INDEX_URL", "UV_INDEX")
    return re.findall(r"https?://\S+", " ".join([first or "", *(settings.get(name, "") for name in names)]))


def unreachable(url: str, proxy: str = "") -> str | None:
    """Why nothing listens there, or at the proxy on the way. What it answers, uv and pip know to read."""
    asked = urlsplit(url)
    if not proxy and not proxy_bypass(asked.hostname or ""):
        proxy = getproxies().get(asked.scheme) or getproxies().get("all", "")
    dialled = urlsplit(proxy if "//" in proxy else f"http://{proxy}") if proxy else asked
    try:
        port = dialled.port or (443 if dialled.scheme == "https" else 80)
        socket.create_connection((dialled.hostname or "", port), timeout=5).close()
    except OSError as error:
        through = f" through the proxy {dialled.hostname}" if proxy else ""
        # Without the password that may be in it.
        shown = asked._replace(netloc=asked.netloc.rpartition("@")[2]).geturl()
        return f"the package index {shown} cannot be reached{through} ({error.strerror or error})"
    return None


def main(url: str = "", package: str = "") -> int:
    ask = [sys.executable, "-m", "pip", "config", "list"]
    pip = pip_settings(subprocess.run(ask, capture_output=True, text=True, check=True).stdout)
    told = uv_settings(pip)
    for index in [url] if url else indexes({**told, **os.environ}):
        if why := unreachable(index, pip.get("proxy", "")):
            print(f"{why}. Set {INSTEAD_FOR.format(package) if package else INSTEAD}.")
            return 1
    if not url:
        # An index that is set for uv alone is pip's, too: pip fetches uv.
        if "UV_DEFAULT_INDEX" in os.environ and "index-url" not in pip:
            told["PIP_INDEX_URL"] = os.environ["UV_DEFAULT_INDEX"]
        for name in told.keys() - os.environ.keys():
            print(f"export {name}={shlex.quote(told[name])}")
        print(f"only_pip={shlex.quote(' '.join(name for name in PIP_ALONE if pip.get(name)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
