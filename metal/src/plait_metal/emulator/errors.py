"""What the emulator finds wrong with a kernel."""

from __future__ import annotations

from plait.errors import FamilyContractError


class KernelDefectError(FamilyContractError):
    """A kernel's text does what no GPU promises to do well.

    Attributes:
        kind: `compile` (the text is refused), `oob` (outside every buffer, or of a threadgroup variable), `readonly`
            (write to an input not listed in `writes`), `uninit` (read before any write), `unwritten` (output bytes
            that no thread wrote), `race` (unordered accesses), `divergence` (lanes or SIMD groups that do not meet),
            `lane` (shuffle from a lane that does not exist), `private` (another thread's memory), `tgmem` (too much
            threadgroup memory), `ub` (undefined arithmetic or private array index), `budget` (endless loop), `memory`
            (this machine cannot hold the run).
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"[{kind}] {message}")
        self.kind = kind
