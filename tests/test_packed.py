"""Weights packed for the CPU: the same products, and a model that is left as it was."""

import gc
import weakref
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import Linear, Sequential

from decodebench.decoding import packed
from decodebench.decoding.packed import packed_weights

needs_bf16 = pytest.mark.skipif(not packed._available(), reason="this CPU has no bfloat16 products in oneDNN")


def layers(*sizes: int, bias: bool = True, dtype: torch.dtype = torch.bfloat16) -> Sequential:
    torch.manual_seed(0)
    stack = Sequential(*(Linear(a, b, bias=bias) for a, b in pairwise(sizes)))
    return stack.to(dtype).requires_grad_(False)


def is_packed(model: torch.nn.Module) -> bool:
    return any("forward" in vars(module) for module in model.modules())


@needs_bf16
@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    width=st.integers(1, 80),
    out=st.integers(1, 80),
    bias=st.booleans(),
)
def test_products_are_as_exact_as_torch_s_own(rows: list[int], width: int, out: int, bias: bool) -> None:
    model = layers(width, out, bias=bias)
    x = torch.randn(*rows, width).bfloat16()
    exact = layers(width, out, bias=bias).float()(x.float())
    with torch.inference_mode(), packed_weights(model):
        assert is_packed(model)
        found = model(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=2**-7, atol=2**-7)


@needs_bf16
def test_the_model_is_as_before_outside_and_after_an_error() -> None:
    model, x = layers(8, 8, 8), torch.randn(3, 8).bfloat16()
    before = model(x)

    def interrupted() -> None:
        with packed_weights(model):
            with packed_weights(model):  # an early exit drafts with the same model
                pass
            assert is_packed(model)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_packed(model)
    assert torch.equal(model(x), before)


@needs_bf16
def test_weights_are_packed_once_and_again_when_they_change() -> None:
    model, x = layers(8, 8), torch.randn(3, 8).bfloat16()
    with packed_weights(model):
        model(x)
    kept = packed._packed[model[0]][-1]  # type: ignore[index]
    with packed_weights(model):
        assert packed._packed[model[0]][-1] is kept  # type: ignore[index]
    model[0].weight.mul_(2)
    with packed_weights(model):
        torch.testing.assert_close(model(x), torch.nn.functional.linear(x, model[0].weight, model[0].bias))


@needs_bf16
def test_copies_go_when_the_model_does() -> None:
    model = layers(8, 8)
    with packed_weights(model):
        pass
    layer = weakref.ref(model[0])
    del model
    gc.collect()
    assert layer() is None


def test_nothing_is_packed_where_it_does_not_fit_or_has_another_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    with packed_weights(full := layers(8, 8, dtype=torch.float32)):
        assert not is_packed(full)
    monkeypatch.setattr(packed, "available_memory", lambda _: 100)
    with packed_weights(model := layers(8, 8)):
        assert not is_packed(model)
