"""The training pass against slow references: one ordinary forward pass per block, a dense mask, autograd."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.integrations.flex_attention
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import MASK, learner_of, mars_passes, trainer_of, training_logits
from tiny import tiny
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import cross_entropy, linear

from decodebench.training.layout import IGNORE, Slots, block_mask, laid_out_length, lay_out, sees
from decodebench.training.loss import unembedding_loss
from decodebench.training.samples import Sample

MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "llama": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 8},
    "granite": {"logits_scaling": 3.0, "embedding_multiplier": 2.0},  # scales its logits after the unembedding
}
LENGTHS = [[(5, 9), (1, 1), (3, 2)], [(8, 12)]]  # prompt and response of each sample of each row


def draw(lengths: list[list[tuple[int, int]]], seed: int = 0) -> list[list[Sample]]:
    source = torch.Generator().manual_seed(seed)

    def some(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 300, (n,), generator=source).tolist())

    return [[Sample(some(a), some(b)) for a, b in row] for row in lengths]


def slow_loss(model: Any, samples: list[Sample], block_size: int | None, ar_weight: float) -> torch.Tensor:
    """As the paper has it, one forward pass per block: a prefix of real tokens, then masks; plain causal attention."""
    total: Any = 0.0
    for sample in samples:
        text, start = [*sample.prompt, *sample.response], len(sample.prompt)
        logits = model(torch.tensor([text])).logits[0]
        clean = cross_entropy(logits[start - 1 : -1], torch.tensor(text[start:]), reduction="sum")
        total = total + (ar_weight if block_size else 1.0) * clean
        if block_size is None:
            continue
        for begin in range(start, len(text), block_size):
            targets = text[begin + 1 : begin + block_size + 1]
            if targets:
                logits = model(torch.tensor([text[:begin] + [MASK] * len(targets)])).logits[0, begin:]
                total = total + cross_entropy(logits, torch.tensor(targets), reduction="sum")
    return total / sum(len(sample.response) for sample in samples)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("block_size", "ar_weight"), [(4, 1.0), (4, 0.0), (2, 0.3), (16, 1.0), (None, 1.0)], ids=str
)  # fmt: skip
def test_the_packed_loss_and_its_gradients_are_those_of_one_pass_per_block(
    kind: str, block_size: int | None, ar_weight: float, tmp_path: Path
) -> None:
    learner = learner_of(tiny(kind, **MODELS[kind]))
    rows = draw(LENGTHS)
    recipe = {"objective": "mars", "block_size": block_size} if block_size else {"objective": "ar-sft"}
    trainer = trainer_of(learner, tmp_path, 64, ar_weight=ar_weight, **recipe)
    parameters = dict(learner.model.named_parameters())

    loss = trainer.compute_loss(learner.model, trainer.collate(rows))
    loss.backward()
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    learner.model.zero_grad()
    learner.model.set_attn_implementation("sdpa")
    expected = slow_loss(learner.model, [sample for row in rows for sample in row], block_size, ar_weight)
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == {name for name, p in parameters.items() if p.grad is not None}
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, parameters[name].grad, atol=1e-5, rtol=1e-4)


@settings(max_examples=12)
@given(
    lengths=st.lists(
        st.lists(st.tuples(st.integers(1, 8), st.integers(1, 11)), min_size=1, max_size=3), min_size=1, max_size=2
    ),
    block_size=st.none() | st.integers(2, 7),
    spare=st.integers(0, 9),
    seed=st.integers(0, 9),
)
def test_packed_attention_is_dense_attention_under_the_rule(
    lengths: list[list[tuple[int, int]]], block_size: int | None, spare: int, seed: int
) -> None:
    model = learner_of(tiny("llama"), full=False).model
    rows = draw(lengths, seed)
    length = max(sum(laid_out_length(sample, block_size) for sample in row) for row in rows) + spare
    layout = lay_out(rows, length, block_size, MASK)
    found = training_logits(model, layout)

    query, key = (
        Slots(*(column[index] for column in layout.slots)) for index in ((..., None), (..., None, slice(None)))
    )
    mask = torch.zeros(len(rows), 1, length, length).masked_fill(~sees(query, key)[:, None], -torch.inf)
    model.set_attn_implementation("sdpa")
    dense = model(layout.tokens, attention_mask=mask, position_ids=layout.slots.position, use_cache=False).logits
    real = layout.slots.sample >= 0
    torch.testing.assert_close(found[real], dense[real], atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_predicts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on CUDA, here without its compiler."""
    monkeypatch.setattr(
        transformers.integrations.flex_attention, "WrappedFlexAttention", lambda _: lambda: flex_attention
    )
    model = learner_of(tiny("qwen2"), full=False).model
    layout = lay_out(draw(LENGTHS), 64, 4, MASK)
    expected = training_logits(model, layout)
    model.set_attn_implementation("flex_attention")
    mask: Any = block_mask(layout.slots)
    found = model(layout.tokens, attention_mask=mask, position_ids=layout.slots.position, use_cache=False).logits
    real = layout.slots.sample >= 0
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-4)


def test_no_sample_of_a_row_moves_another() -> None:
    model = learner_of(tiny("qwen2")).model
    lengths = [(5, 9), (4, 7), (6, 3)]
    (row,), (other,) = draw([lengths]), draw([lengths], seed=1)
    layout, changed = (lay_out([samples], 64, 4, MASK) for samples in (row, [row[0], other[1], row[2]]))
    number = layout.slots.sample[0]
    before, after = (training_logits(model, one)[0] for one in (layout, changed))
    assert torch.equal(before[number != 1], after[number != 1])
    assert not torch.isclose(before[number == 1], after[number == 1]).all(-1).any()

    for sample in range(3):
        embedded = model.get_input_embeddings()(layout.tokens).detach().requires_grad_()
        logits = training_logits(model, layout, inputs_embeds=embedded)
        mine = (number == sample) & (layout.targets[0] != IGNORE)
        cross_entropy(logits[0, mine], layout.targets[0, mine]).backward()
        moved = embedded.grad[0].abs().amax(-1)
        assert (moved[number != sample] == 0).all()
        assert (moved[number == sample] > 0).any()


@pytest.mark.parametrize("block_size", [2, 4, 7])
@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_a_decoding_pass_predicts_what_the_training_pass_predicts(kind: str, block_size: int) -> None:
    model = tiny(kind, stop=False)
    sample, passes = mars_passes(model, [9, 40, 41, 9, 77], passes=4, block_size=block_size)
    layout = lay_out([[sample]], 96, block_size, MASK)
    logits = training_logits(learner_of(model).model, layout)[0].detach()
    noisy, place = layout.slots.noisy[0], layout.slots.position[0]
    for n, decoded in enumerate(passes):
        begin = len(sample.prompt) + n * block_size
        masks = logits[noisy & (place >= begin) & (place < begin + block_size - 1)]
        torch.testing.assert_close(masks, decoded[1:], atol=1e-4, rtol=1e-4)
        last_real = logits[~noisy & (place == begin - 1) & (layout.slots.sample[0] == 0)]
        torch.testing.assert_close(last_real, decoded[:1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 20, 64, None])
def test_chunked_cross_entropy_is_cross_entropy(chunk: int | None, bias: bool) -> None:
    torch.manual_seed(0)
    n, width, vocabulary = 20, 8, 50
    hidden, weight = torch.randn(n, width, requires_grad=True), torch.randn(vocabulary, width, requires_grad=True)
    shift = torch.randn(vocabulary, requires_grad=True) if bias else None
    targets, weights = torch.randint(vocabulary, (n,)), torch.rand(n)
    weights[3:6] = 0.0
    moved = [tensor for tensor in (hidden, weight, shift) if tensor is not None]

    losses = unembedding_loss(hidden, weight, shift, targets, weights, chunk)
    found = torch.autograd.grad(losses.total * 3, moved)
    logits = linear(hidden, weight, shift)
    each = cross_entropy(logits, targets, reduction="none")
    expected = torch.autograd.grad((each * weights).sum() * 3, moved)
    torch.testing.assert_close(losses.total, (each * weights).sum())
    torch.testing.assert_close(losses.each, each.detach())
    assert torch.equal(losses.correct, logits.argmax(-1) == targets)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not losses.each.requires_grad


def test_only_what_is_trained_gets_a_gradient_and_nothing_at_all_without_one() -> None:
    hidden, weight = torch.randn(6, 8, requires_grad=True), torch.randn(50, 8)
    targets, weights = torch.randint(50, (6,)), torch.ones(6)
    unembedding_loss(hidden, weight, None, targets, weights).total.backward()
    assert hidden.grad is not None
    assert weight.grad is None
    with torch.no_grad():
        assert not unembedding_loss(hidden, weight, None, targets, weights).total.requires_grad


def test_no_labelled_positions_lose_nothing() -> None:
    hidden, weight = torch.zeros(0, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    losses = unembedding_loss(hidden, weight, None, torch.zeros(0, dtype=torch.long), torch.zeros(0))
    losses.total.backward()
    assert losses.total == 0
    assert weight.grad is not None
    assert (weight.grad == 0).all()


def test_no_more_logits_are_there_at_a_time_than_fit_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    plain = torch.nn.functional.linear

    def watched(hidden: torch.Tensor, *others: Any) -> torch.Tensor:
        widths.append(len(hidden))
        return plain(hidden, *others)

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    monkeypatch.setattr("decodebench.training.loss.CHUNK_BYTES", 4 * 50 * 32)
    n = 100
    unembedding_loss(torch.randn(n, 8), torch.randn(50, 8), None, torch.zeros(n, dtype=torch.long), torch.ones(n))
    assert widths == [32, 32, 32, 4]
