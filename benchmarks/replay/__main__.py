"""`python -m benchmarks.replay BEFORE AFTER`. All of it is in `compare`, which worker processes can import."""

from __future__ import annotations

import sys

from benchmarks.replay.compare import main

if __name__ == "__main__":
    sys.exit(main())
