"""One forward over a mixed batch, as the families see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import mlx.core as mx

if TYPE_CHECKING:
    from plait.memory.view import StateView, TokenView


@attrs.frozen
class Chunk:
    """A run of prompt tokens of one request.

    Attributes:
        row: index of the request's row in the step.
        start: first token in the packed batch.
        stop: one past the last token in the packed batch.
        context: tokens of the request that are already in pages.
        blocks: per table of the plan, the kernel blocks [n] int32 that hold those tokens (n may be 0); None for states.
    """

    row: int
    start: int
    stop: int
    context: int
    blocks: tuple[mx.array | None, ...]


@attrs.frozen
class DecodeGroup:
    """Decode rows of similar context, which read their pages together.

    Attributes:
        start: first row.
        stop: one past the last row.
        blocks: per table of the plan, kernel blocks [rows, n] int32, short rows ending in null blocks; None for states.
        bias: what is added to the scores, float32 [rows, n * block]: 0 where a token is, -inf beyond; the same for
            every table, for all count the same tokens in the same blocks.
    """

    start: int
    stop: int
    blocks: tuple[mx.array | None, ...]
    bias: mx.array


@attrs.frozen
class TokenWrite:
    """Rows [tokens, *shape] that a site adds for the tokens of the step."""

    view: TokenView
    rows: mx.array


@attrs.frozen
class StateWrite:
    """New states, one tensor per tensor of the spec, [n, *shape], for the rows from `first_row` on."""

    view: StateView
    first_row: int
    tensors: Sequence[mx.array]


@attrs.define
class Step:
    """A mixed batch: `decode` rows of one token each, then the chunks; in the packed batch in that order.

    It stands in the place of mlx-lm's cache list: models hand it down to their mixers as `cache`, and the wrapped
    mixers find here everything they need. Nothing about a batch is kept anywhere else.

    Attributes:
        decode: number of decode rows; row i is token i of the packed batch.
        tokens: tokens in the packed batch.
        rows: requests in the batch.
        positions: position of each token in its sequence, int32 [tokens].
        logit_tokens: the packed tokens whose logits are wanted, int32 [n].
        groups: the decode rows, in row order.
        chunks: the chunks, in row order.
        run_tables: per table of the plan, page ids of the rows' state runs, int32 [rows, pages]; None for token tables.
        token_writes: what the sites have added in this step.
        state_writes: the states the sites have computed in this step.
    """

    decode: int
    tokens: int
    rows: int
    positions: mx.array
    logit_tokens: mx.array
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]
    run_tables: tuple[mx.array | None, ...]
    token_writes: list[TokenWrite] = attrs.field(factory=list)
    state_writes: list[StateWrite] = attrs.field(factory=list)
    _runs: dict[tuple[int, int], mx.array] = attrs.field(factory=dict)

    def runs(self, arena_index: int, arena: mx.array, table_index: int) -> mx.array:
        """Return the state runs of all rows, uint32 [rows, words], read once for all sites that share them."""
        key = (arena_index, table_index)
        found = self._runs.get(key)
        if found is None:
            table = self.run_tables[table_index]
            assert table is not None
            found = self._runs[key] = arena[table].reshape(self.rows, -1)
        return found

    def produced(self) -> list[mx.array]:
        """Return every array that the step's sites have written, for evaluation."""
        arrays = [w.rows for w in self.token_writes]
        for write in self.state_writes:
            arrays.extend(write.tensors)
        return arrays

    # What mlx-lm's model code does to the entries of its cache list. The mixers do their own masking.

    def make_mask(self, *_: Any, **__: Any) -> None:
        """Return no mask: a packed batch is masked row by row, inside the sites."""
        return None

    def __getitem__(self, _: int) -> Step:
        """Stand for each part of a cache of several parts."""
        return self
