"""Decay inside blocks of tokens, as products of factors that never exceed one."""

from __future__ import annotations

import attrs
import mlx.core as mx

from plait.ops.exponential import exp


def decay_factor(log_decay: mx.array) -> mx.array:
    """exp of a log decay <= 0, in float32."""
    return exp(log_decay.astype(mx.float32))


@attrs.frozen
class BlockDecay:
    """Decay inside aligned blocks of tokens, [..., tokens, D]; D = 1 for one decay per head.

    Attributes:
        since: from the block's start through each token.
        until: from after each token to the block's end.
        width: tokens of a block.
    """

    since: mx.array
    until: mx.array
    width: int

    @classmethod
    def of_tokens(cls, factors: mx.array) -> BlockDecay:
        """Blocks of one token each, from their factors [..., tokens, D]."""
        return cls(factors, mx.ones_like(factors), 1)

    def doubled(self) -> BlockDecay:
        """The same for blocks twice as wide."""
        since, until = self._pairs(self.since), self._pairs(self.until)
        left, right = since[..., :1, -1:, :], since[..., 1:, -1:, :]
        one = mx.ones_like(left)
        since = since * mx.concatenate([one, left], axis=-3)
        until = until * mx.concatenate([right, one], axis=-3)
        return BlockDecay(since.reshape(self.since.shape), until.reshape(self.until.shape), 2 * self.width)

    def across(self) -> tuple[mx.array, mx.array]:
        """What lies between a token of a left block and one of its right neighbour, as two factors.

        Returns:
            `since` of the right blocks and `until` of the left ones, each [..., pairs, width, D].
        """
        return self._pairs(self.since)[..., 1, :, :], self._pairs(self.until)[..., 0, :, :]

    def _pairs(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:-2], -1, 2, self.width, x.shape[-1])
