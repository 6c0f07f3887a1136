"""The command line, `plait`.

Nothing heavy is imported before a command needs it: `plait --help` loads neither MLX nor any plugin.
"""

from __future__ import annotations

import os
import sys

from plait.cli.app import build_app
from plait.cli.output import INTERRUPTED


def main() -> None:
    """Run the command line; the entry point of `plait`."""
    try:
        build_app()(prog_name="plait")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # A model that loads on the engine's thread cannot be stopped, and an interpreter that ends while another
            # thread is in MLX crashes.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
