"""How a CUDA device computes in a run: in a fixed order unless asked otherwise, without TF32."""

from __future__ import annotations

import hashlib
import os

import torch

from fedvlm.core.threads import forbid_tf32, tf32_allowed

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # read when the first product starts cuBLAS


def compute_in_order(device: torch.device, fast: bool = False) -> None:
    """Ask a CUDA device for kernels that give the same bits each time, in this whole process.

    Attention's backward runs in a fixed order then, too (PyTorch 2.2), and cuDNN's attention, which
    has no such order, is left out. TF32 is off: without it a patch embedding in fp32 differs from a
    CPU's by 1e-3. An operation without such a kernel stops the run.

    Args:
        fast: take kernels without a fixed order, too, and cuDNN's attention. TF32 stays off and
            cuDNN's convolutions stay in order.
    """
    if device.type != "cuda":
        return
    if not fast:
        os.environ.setdefault(WORKSPACE, ":4096:8")
    # As torch.use_deterministic_algorithms, which loads the compiler: 1.2 s (PyTorch 2.15).
    torch.set_deterministic_debug_mode("default" if fast else "error")
    cudnn = torch.backends.cudnn
    cudnn.deterministic, cudnn.benchmark = True, False
    forbid_tf32(torch)
    torch.backends.cuda.enable_cudnn_sdp(fast)


def lack_of(count: int) -> str:
    """Return why a CUDA device that was asked for is not among the ``count`` of this process."""
    if count:
        return f"this machine has {count} CUDA device(s), cuda:0 to cuda:{count - 1}"
    reason, seen = "", os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # the latter from a build without CUDA
        reason = f"; PyTorch {torch.__version__}: {str(error).partition('. ')[0].rstrip('.')}"
    hidden = "" if seen is None else f"; CUDA_VISIBLE_DEVICES is '{seen}'"
    return f"this machine has 0 CUDA device(s){reason}{hidden}"


def cuda_words(device: torch.device) -> str:
    """Return what ``cuda_identity`` says, in a few words: part of a feature's origin.

    All of it may decide a feature's last bits: without a fixed order attention takes other kernels.
    """
    told = cuda_identity(device)
    order = "fixed order" if told["algorithms"] else "no fixed order"
    low = [name for name, on in (("products", told["tf32"]), ("cuDNN", told["cudnn_tf32"])) if on]
    tf32 = f"TF32 in {' and '.join(low)}" if low else "no TF32"
    return f"({told['name']}, {order}, {tf32}, CUDA {told['cuda']}, build {told['build']})"


def cuda_identity(device: torch.device) -> dict[str, object]:
    """Return what of a CUDA device decides about bits: its name, PyTorch's build, TF32, order."""
    products, cudnn = tf32_allowed(torch)
    return {
        "name": torch.cuda.get_device_name(device),
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "tf32": products, "cudnn_tf32": cudnn,
        "torch": str(torch.__version__), "cuda": torch.version.cuda,
        "build": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16],
    }
