"""The table of parity runs that every family's models go through; `plait.testing.scenario.FACTORS` names its columns.

Every two levels of any two factors meet in at least one row (`plait.testing.pairwise` made it, and a test counts).
"""

from __future__ import annotations

from plait.testing.scenario import Scenario

TABLE: tuple[Scenario, ...] = (
    Scenario(1, None, 16, "spanning", True, False, False),
    Scenario(2, 7, 16, "spanning", True, False, False),
    Scenario(3, 7, 16, "spanning", True, False, False),
    Scenario(3, 16, 16, "spanning", False, False, True),
    Scenario(8, 3, 16, "spanning", True, False, True),
    Scenario(8, 7, 16, "spanning", False, False, True),
    Scenario(2, 2, 16, "spanning", False, True, True),
    Scenario(2, None, 16, "spanning", False, True, False),
    Scenario(5, 1, 16, "spanning", True, True, True),
    Scenario(5, 16, 32, "spanning", False, False, True),
    Scenario(5, None, 32, "spanning", True, False, False),
    Scenario(1, 3, 32, "spanning", False, True, False),
    Scenario(2, 64, 32, "spanning", True, True, True),
    Scenario(3, 1, 32, "spanning", True, True, True),
    Scenario(3, 2, 32, "spanning", False, True, False),
    Scenario(3, 3, 32, "spanning", False, True, False),
    Scenario(5, 2, 32, "spanning", True, True, True),
    Scenario(8, 64, 32, "spanning", True, True, False),
    Scenario(1, 2, 16, "unified", False, False, False),
    Scenario(2, 1, 16, "unified", False, False, False),
    Scenario(2, 16, 16, "unified", True, False, False),
    Scenario(5, 64, 16, "unified", False, False, False),
    Scenario(1, 1, 16, "unified", False, True, False),
    Scenario(1, 7, 16, "unified", True, True, False),
    Scenario(2, 3, 16, "unified", False, True, True),
    Scenario(3, None, 16, "unified", False, True, True),
    Scenario(5, 3, 16, "unified", False, True, True),
    Scenario(8, 2, 16, "unified", False, True, True),
    Scenario(8, 16, 16, "unified", True, True, True),
    Scenario(8, None, 16, "unified", False, True, False),
    Scenario(1, 64, 32, "unified", False, False, True),
    Scenario(3, 64, 32, "unified", False, False, True),
    Scenario(8, 1, 32, "unified", True, False, True),
    Scenario(1, 16, 32, "unified", True, True, True),
    Scenario(5, 7, 32, "unified", False, True, True),
)
