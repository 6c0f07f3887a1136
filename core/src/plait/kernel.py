"""Kernels as data, and what a kernel backend must offer.

A family describes a kernel once, as a `Kernel` record with a reference in plain MLX operations. Where a backend
(plait-metal) is installed it compiles the text for the GPU at hand; where none is, the reference runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs
import mlx.core as mx

Reference = Callable[..., Sequence[mx.array]]
"""`reference(*inputs, **template)` returns the outputs, in the order of `Kernel.outputs`, and after them the new
contents of each input that the kernel writes, in the order of `Kernel.writes`."""


@attrs.frozen
class Kernel:
    """One kernel: its text in the dialect shared by Metal and CUDA, and what it must equal.

    Attributes:
        name: C identifier, unique in the process.
        inputs: names of the input arrays, in order; the text reads each as a pointer, scalars as 1-element arrays.
        outputs: names of the output arrays, in order.
        source: the body.
        reference: the same function in plain MLX operations; it is the CPU path and the test's expectation.
        header: declarations placed before the body.
        writes: input names whose buffers the body writes in place (an arena); their readers must be ordered by hand.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: str
    reference: Reference
    header: str = ""
    writes: tuple[str, ...] = ()


@attrs.frozen
class Launch:
    """How one call of a built kernel is laid out on the device.

    Attributes:
        grid: threads in x, y, z (not threadgroups).
        threadgroup: threads of one group in x, y, z; a whole number of 32-lane SIMD groups.
        output_shapes: one shape per output.
        output_dtypes: one dtype per output.
        template: values for the names that the text leaves open (int, bool or dtype).
    """

    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    output_shapes: Sequence[tuple[int, ...]]
    output_dtypes: Sequence[mx.Dtype]
    template: Mapping[str, int | bool | mx.Dtype] = attrs.field(factory=dict)


class BuiltKernel(Protocol):
    """A kernel ready to launch."""

    def __call__(self, inputs: Sequence[mx.array], launch: Launch) -> Sequence[mx.array]:
        """Run once; `inputs` in the order of `Kernel.inputs`."""


@attrs.frozen
class TokenWindow:
    """Where one token site's rows lie inside a page of `block` tokens.

    A token's row has shape [outer, inner]; in the page the rows of a block lie as [outer, block, inner], so token
    `slot` of a page starts, for each o, at unit `offset + (o * block + slot) * inner`.

    Attributes:
        page: units from one page to the next.
        offset: units from the start of a page to the site's part.
        block: tokens per page.
        outer: product of the axes before the block axis.
        inner: product of the axes after the block axis, in units.
        unit: bytes of one unit: the itemsize of the site's dtype (1, 2 or 4).
    """

    page: int
    offset: int
    block: int
    outer: int
    inner: int
    unit: int


@attrs.frozen
class RunWindow:
    """Where one state tensor lies inside a run that is laid end to end over whole pages.

    Word w of the tensor is word `(offset + w) % page` of page `table[(offset + w) // page]`.

    Attributes:
        page: 32-bit words per page.
        offset: words from the start of the run to the tensor.
        words: words of the tensor; a whole number (tensors are padded to 512 bytes).
    """

    page: int
    offset: int
    words: int


class RowWriter(ABC):
    """Writes rows into an arena in place. Page 0 is the null page: writes of padding rows go there, or are dropped.

    Every method takes `after`, arrays whose evaluation must precede the write (readers of the pages written), and
    returns a fence: an int32 zero [1] that any later reader of those pages must depend on, as an input of its kernel or
    added to its indices. An arena is a uint32 array [pages, words per page].
    """

    @abstractmethod
    def write_tokens(
        self,
        arena: mx.array,
        rows: mx.array,
        pages: mx.array,
        slots: mx.array,
        window: TokenWindow,
        after: Sequence[mx.array],
    ) -> mx.array:
        """Write `rows` [T, outer, inner] of the site's dtype to `pages` [T] int32 at `slots` [T] int32."""

    @abstractmethod
    def write_runs(
        self, arena: mx.array, rows: mx.array, tables: mx.array, window: RunWindow, after: Sequence[mx.array]
    ) -> mx.array:
        """Write `rows` [R, ...] (any dtype; each row at most `window.words` words) to the runs `tables` [R, P] int32.

        A row whose first page is 0 is padding and is not written.
        """

    @abstractmethod
    def zero_pages(self, arena: mx.array, pages: mx.array, after: Sequence[mx.array]) -> mx.array:
        """Set `pages` [N] int32 to zero bits."""

    @abstractmethod
    def copy_pages(self, arena: mx.array, sources: mx.array, targets: mx.array, after: Sequence[mx.array]) -> mx.array:
        """Copy page `sources[i]` to page `targets[i]`, both [N] int32 and disjoint."""


class KernelBackend(RowWriter):
    """A way to run kernels on the device at hand; what `plait_kernel_backend` returns."""

    name: str
    """For people: "metal", "cuda"; reports print it."""

    @abstractmethod
    def build(self, kernel: Kernel) -> BuiltKernel:
        """Prepare a kernel. Raises `FamilyContractError` if the backend cannot take it."""
