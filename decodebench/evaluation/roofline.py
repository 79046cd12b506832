"""What a machine and a model allow at best: measured memory bandwidth and matrix rate, and the cost of a slot."""

import math
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from decodebench.decoding.cache import position_bytes
from decodebench.memory import available_memory
from decodebench.models import LoadedModel

BUFFER = 1 << 30  # bytes: several times the largest caches
SIZES = (512, 1024, 2048, 4096, 8192)  # of square matrices
SAMPLES = 7
SAMPLE_SECONDS = 0.02


def roofline(model: LoadedModel) -> dict[str, dict[str, float]]:
    """What a run records under "roofline" (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009).

    Returns:
        "machine": limits measured on the model's device, in its dtype, with the threads of this process: bytes read
        per second, and floating-point operations per second of a product of large matrices. "model": see
        :func:`model_cost`.
    """
    with torch.inference_mode():
        machine = {
            "bytes_per_second": memory_bandwidth(model.device),
            "flops_per_second": matrix_rate(model.device, model.dtype),
        }
    return {"machine": machine, "model": model_cost(model.model)}


def model_cost(model: Any) -> dict[str, float]:
    """What a pass costs, counted from the model's linear layers and the shape of its attention.

    Left out is what is small beside these: norms, embedded tokens, activations, and the keys and values written.

    Args:
        model: a ``PreTrainedModel`` with full attention in every layer.

    Returns:
        "weight_bytes": read once per pass, the unembedding's included (tied to the embedding or not);
        "slot_flops": 2 per weight, for each slot of the window; "unembedding_flops": likewise, for each slot that is
        unembedded; "key_bytes": keys and values of one position in all layers; "score_flops": of each query-key pair
        in all heads and layers.
    """
    unembedding = model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    layers = sum(module.weight.numel() for module in linear if module is not unembedding)
    read = {id(weight): weight.nbytes for module in [*linear, unembedding] for weight in module.parameters()}
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return {
        "weight_bytes": sum(read.values()),
        "slot_flops": 2 * layers,
        "unembedding_flops": 2 * unembedding.weight.numel(),
        "key_bytes": position_bytes(config, model.dtype),
        "score_flops": 4 * config.num_hidden_layers * heads * size,
    }


def memory_bandwidth(device: torch.device) -> float:
    """Bytes per second of reading a buffer that no cache holds: the median of several sums over it."""
    buffer = torch.ones(min(BUFFER, available_memory(device) // 8) // 4, device=device)
    return _rate(buffer.nbytes, buffer.sum, device)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of square matrices, as large as are multiplied in a moment: the median."""
    for size in SIZES:
        left, right = torch.ones(2, size, size, dtype=dtype, device=device)

        def multiply(a: torch.Tensor = left, b: torch.Tensor = right) -> object:
            return torch.nn.functional.linear(a, b)

        _seconds(multiply, 1, device)  # the first one prepares
        if _seconds(multiply, 1, device) > SAMPLE_SECONDS:
            break
    return _rate(2 * size**3, multiply, device)


def _rate(work: float, do: Callable[[], object], device: torch.device) -> float:
    """Work per second: the median of samples, each long enough that beginning and waiting do not count."""
    _seconds(do, 1, device)
    times = math.ceil(SAMPLE_SECONDS / _seconds(do, 1, device))
    return work * times / median(_seconds(do, times, device) for _ in range(SAMPLES))


def _seconds(do: Callable[[], object], times: int, device: torch.device) -> float:
    _wait(device)
    begun = time.perf_counter()
    for _ in range(times):
        do()
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
