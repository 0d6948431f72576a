"""A worker for an engine's process that starts at once, and then neither reads nor answers what it is asked."""

from __future__ import annotations

import sys
import time

if __name__ == "__main__":
    sys.stdin.readline()
    print('{"runs": {}}', flush=True)
    print("nothing is wrong", file=sys.stderr, flush=True)
    time.sleep(600)
