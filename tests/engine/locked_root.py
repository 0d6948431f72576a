"""Runs a command as a container with a read-only root does: only one folder and /tmp can be written to.

/tmp is new and nothing in it can be run, but for our environment and sources where they lie there. The command has no
capability and gets none. Linux's namespaces do this for root; elsewhere ``can_lock`` is false.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

FOLDER = "/srv"  # where the folder is seen

_LOCK = f"""
set -e
mount --make-rprivate /
mount --bind "$1" {FOLDER}
mount --rbind /tmp /mnt
mount --types tmpfs --options mode=1777,size=1g,noexec,nosuid tmpfs /tmp
for kept in $2; do
  mkdir --parents "$kept"
  mount --bind "/mnt${{kept#/tmp}}" "$kept"
done
umount --lazy /mnt
awk '{{print $2}}' /proc/mounts | while read -r point; do
  case "$point" in
    {FOLDER}|/tmp|/proc|/proc/*|/dev|/dev/*|/sys|/sys/*) ;;
    *) mount --options remount,bind,ro "$point" 2>/dev/null || true ;;
  esac
done
if touch /posenc-probe 2>/dev/null; then echo "the root can be written to" >&2; exit 1; fi
cd {FOLDER}
shift 2
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- "$@"
"""


def can_lock() -> bool:
    """Whether this process may make namespaces, and the programs for it are here."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "mount"))):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


def locked(folder: pathlib.Path, *command: str) -> tuple[str, ...]:
    """The command that runs another one so. It keeps its process id.

    Args:
        folder: seen as ``FOLDER``.
    """
    ours = (sys.prefix, str(pathlib.Path(__file__).resolve().parents[2]))
    kept = " ".join(path for path in ours if path.startswith("/tmp/"))
    return ("unshare", "--mount", "bash", "-c", _LOCK, "lock", str(folder), kept, *command)
