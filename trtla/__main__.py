"""`python -m trtla`, the same command line as `trtla`."""

from __future__ import annotations

from trtla.cli import main

if __name__ == "__main__":
    main()
