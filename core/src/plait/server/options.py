"""How the server behaves, as against what the engine does."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ServerOptions:
    """Settings of the HTTP server.

    Attributes:
        max_body_bytes: a request with a larger body is refused.
        keep_alive_seconds: a stream that has nothing to say for so long sends a comment, so that nobody hangs up.
        stall_seconds: an engine that ends no step for so long fails the requests that wait for it.
    """

    max_body_bytes: int = 32 << 20
    keep_alive_seconds: float = 5.0
    stall_seconds: float = 600.0

    @property
    def tick_seconds(self) -> float:
        """How often a stream looks at the clock."""
        return min(1.0, self.keep_alive_seconds / 4)
