"""`python -m ckpt_surgery`: the same as the `ckpt_surgery` script."""

from __future__ import annotations

from ckpt_surgery.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
