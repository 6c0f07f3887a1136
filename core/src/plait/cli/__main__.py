"""`python -m plait.cli` is `plait`."""

from __future__ import annotations

from plait.cli import main

main()
