"""The pass of one token on a CPU, compiled: faster products, and what lies between them fused."""

import logging
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from decodebench.decoding.cache import ATTENTION
from decodebench.errors import UserError
from decodebench.memory import available_memory, readable

OPTIONS = {
    "freezing": True,  # weights become constants, laid out as each product wants them
    "max_autotune": True,  # and each product is the faster of oneDNN's and one generated for its shape
    "max_autotune_gemm_backends": "ATEN,CPP",
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}

COPIES = 2  # of the weights: one in the program, one while it is made

log = logging.getLogger(__name__)


@dataclass
class CompiledPass:
    """A model's layers as a program for one token of one row.

    Wider passes are not compiled: from a few tokens on oneDNN's products are the faster ones, and take nearly all of
    the time.

    Attributes:
        program: in place of the ``forward`` of what a causal language model has below its unembedding; ``None`` for a
            model that cannot be compiled.
        seconds: that it took to compile.
    """

    program: Callable[..., Any] | None
    seconds: float

    def run(self, model: Any, tokens: Tensor, positions: Tensor) -> Any:
        """What the whole model makes of one token, ``[1, 1]``, the program being below its unembedding.

        Always called in one way, and with two tensors: what was one when it was compiled would stay one.
        """
        model.base_model.forward = self.program
        try:
            return model(input_ids=tokens, position_ids=positions, use_cache=False)
        finally:
            del model.base_model.forward


def compile_pass(model: Any) -> CompiledPass:
    """Compile a model's layers for decoding one token; takes a minute or more, and as much memory as the weights.

    The weights become part of the program: compile again after changing them. A model that cannot be compiled is left
    as it is, with a warning, and without a program.

    Args:
        model: a ``PreTrainedModel`` on a CPU, not inside :meth:`WindowModel.ready`.

    Raises:
        UserError: as :func:`check_compilable`.
    """
    check_compilable(model)
    begun, before = time.perf_counter(), model.config._attn_implementation
    program = None
    try:
        model.set_attn_implementation(ATTENTION)
        program = _compile(model)
    except Exception as error:  # whatever a model does that the compiler cannot follow
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        log.warning("--compile: passes run uncompiled, and slower: %s", reason)
    finally:
        model.set_attn_implementation(before)
    return CompiledPass(program, time.perf_counter() - begun)


def check_compilable(model: Any) -> None:
    """Raise a UserError on another device than a CPU, with too little memory, or where torch finds no C++ compiler."""
    if model.device.type != "cpu":
        raise UserError(f"--compile is for CPUs: leave it out on {model.device.type}")
    needed, free = COPIES * sum(weight.nbytes for weight in model.parameters()), available_memory(model.device)
    if needed > free:
        raise UserError(
            f"--compile needs about {readable(needed)} for copies of the weights, and {readable(free)} are "
            "free: leave it out"
        )
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        found = shutil.which(get_cpp_compiler())
    except Exception:  # of a class that moves from version to version
        found = None
    if found is None:
        raise UserError("--compile needs a C++ compiler: install g++, or name one in the environment variable CXX")


def _compile(model: Any) -> Callable[..., Any]:
    from torch._inductor import config  # a second to import

    program: Callable[..., Any] = torch.compile(
        _copy(model.base_model.forward),
        dynamic=False,
        fullgraph=True,
        # Only we call it, with inputs of one shape and weights that stay: to look at every weight in every pass would
        # take a millisecond and a half at 30 layers.
        options={"guard_filter_fn": lambda guards: [False] * len(guards)},
    )
    compiled = CompiledPass(program, 0.0)
    with (
        torch.inference_mode(),
        config.patch(OPTIONS),  # as `options`, the tracer would not see that weights are fixed
        warnings.catch_warnings(action="ignore"),  # of the compiler about itself
    ):
        compiled.run(model, *(torch.zeros(1, 1, dtype=torch.long) for _ in range(2)))
    return program


def _copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with a code object of its own: by that torch finds what it has compiled, if nothing else is checked."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)
