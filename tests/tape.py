"""What a CUDA graph does, on any device: the operations of a function, done again on the very same tensors."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Runs a function once and notes its operations; ``replay`` does them again, without the function.

    As with a graph, whatever Python decided the first time stays decided, and numbers that the host would have to read
    from a tensor cannot be recorded.
    """

    count = 0
    """Recordings ever made."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        run()  # whatever is made on first use is made now
        self.steps: list[tuple[Any, Any, Any, Any]] = []
        with self:
            run()
        Tape.count += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"):
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        if not (func.is_view and _storages(out) <= _storages(args)):  # such as `reshape` may copy
            self.steps.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.steps:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _storages(values: Any) -> set[int]:
    return {value.untyped_storage().data_ptr() for value in tree_leaves(values) if isinstance(value, Tensor)}
