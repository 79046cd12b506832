"""Where a model runs, and in which number format."""

import re

import torch

from decodebench.errors import UserError, unknown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(device: str) -> torch.device:
    """The device a user means.

    Raises:
        UserError: when there is no such device here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise UserError(f"--device {device}: choose auto, cpu, cuda, cuda:N or mps")
    place = torch.device(device)
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"--device {device}: torch {torch.__version__} sees {count} CUDA devices here")
    if place.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"--device {device}: torch {torch.__version__} has no Metal device here")
    return place


def requested_dtype(dtype: str) -> torch.dtype | None:
    """The format a user asks for; ``None`` for ``auto``.

    Raises:
        UserError: for an unknown name.
    """
    if dtype == "auto":
        return None
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, ["auto", *DTYPES])
    return DTYPES[dtype]


def fast_dtype(own: torch.dtype, device: torch.device) -> torch.dtype:
    """What ``auto`` means: a checkpoint's own format, unless this device is slow in it."""
    if own not in (torch.bfloat16, torch.float16):
        return own
    if device.type == "cpu":
        return own if _cpu_is_fast(own) else torch.float32
    if device.type == "cuda" and own == torch.bfloat16 and torch.cuda.get_device_capability(device) < (8, 0):
        return torch.float16
    return own


def _cpu_is_fast(dtype: torch.dtype) -> bool:
    name = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}[dtype]
    try:
        return bool(getattr(torch.ops.mkldnn, name)())
    except (AttributeError, RuntimeError):
        return False
