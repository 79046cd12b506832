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
    kept = packed._packed[model[0]].weight  # type: ignore[index]
    with packed_weights(model):
        assert packed._packed[model[0]].weight is kept  # type: ignore[index]
    model[0].weight.mul_(2)
    with packed_weights(model):
        torch.testing.assert_close(model(x), torch.nn.functional.linear(x, model[0].weight, model[0].bias))


class Attention(torch.nn.Module):
    """Three layers that a model usually feeds the same input."""

    def __init__(self, width: int, sizes: list[int], bias: list[bool]) -> None:
        super().__init__()
        torch.manual_seed(0)
        names = ("q_proj", "k_proj", "v_proj")
        for name, size, with_bias in zip(names, sizes, bias, strict=True):
            self.add_module(name, Linear(width, size, bias=with_bias).bfloat16().requires_grad_(False))
        self.names = names

    def forward(self, inputs: list[torch.Tensor], order: list[int]) -> list[torch.Tensor]:
        return [getattr(self, self.names[n])(inputs[n % len(inputs)]) for n in order]


@needs_bf16
@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=3, max_size=3),
    bias=st.lists(st.booleans(), min_size=3, max_size=3),
    rows=st.integers(1, 20),
    inputs=st.integers(1, 3),
    order=st.lists(st.integers(0, 2), min_size=1, max_size=9),
)
def test_layers_with_one_input_may_be_asked_in_any_order_and_for_other_inputs(
    sizes: list[int], bias: list[bool], rows: int, inputs: int, order: list[int]
) -> None:
    model = Attention(24, sizes, bias)
    given = [torch.randn(2, rows, 24).bfloat16() for _ in range(inputs)]
    expected = model(given, order)
    with torch.inference_mode(), packed_weights(model):
        found = model(given, order)
    assert not is_packed(model)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=2**-6, atol=2**-6)


@needs_bf16
def test_layers_with_one_input_become_one_product_and_leave_nothing_behind() -> None:
    model, x = Attention(8, [8, 4, 4], [True] * 3), torch.randn(3, 8).bfloat16()
    with torch.inference_mode(), packed_weights(model):
        model([x], [0, 1, 2])
        product = model.q_proj.forward.product
        assert product is model.v_proj.forward.product
        assert product.input is None
        assert product.parts == [None] * 3
        kept = packed._packed[model.q_proj].weight
    model.k_proj.bias.add_(1)
    with torch.inference_mode(), packed_weights(model):
        assert packed._packed[model.q_proj].weight is not kept
        torch.testing.assert_close(
            model([x], [1])[0], torch.nn.functional.linear(x, model.k_proj.weight, model.k_proj.bias)
        )


@needs_bf16
def test_a_layer_with_two_parents_is_packed_once() -> None:
    model = layers(8, 8)
    model.add_module("again", Sequential(model[0]))
    with packed_weights(model):
        assert is_packed(model)
    assert not is_packed(model)


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
