"""Whether float32 is computed in TF32 on a GPU: PyTorch's switches, the old and the new.

Every operation has a word (``fp32_precision``), which decides. The older switches (``allow_tf32``)
set some of the words, and cannot be read where the words say what no switch does. ``torch`` is
given by the caller: a record is made without importing it.
"""

from __future__ import annotations

from typing import Any

LOW, EXACT = "tf32", "ieee"


def tf32_allowed(torch: Any) -> tuple[bool, bool]:
    """Return whether matrix products, and whether cuDNN's operations, may take TF32."""
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    words = (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision)
    return products.fp32_precision == LOW, LOW in words


def forbid_tf32(torch: Any) -> None:
    """Compute float32 as float32 on a GPU, whichever switch said otherwise."""
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    torch.set_float32_matmul_precision("highest")
    products.allow_tf32 = cudnn.allow_tf32 = False
    for operation in (products, cudnn.conv, cudnn.rnn):
        operation.fp32_precision = EXACT


def matmul_precision(torch: Any) -> str:
    """Return the precision of matrix products: ``highest``, ``high``, ``medium``, or a new word."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # the words say what no switch does
        return str(torch.backends.cuda.matmul.fp32_precision)
