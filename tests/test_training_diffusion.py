"""Block diffusion's objective: slot by slot, against a dense pass per block, and against what the decoder computes."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import harness
import pytest
import torch
import transformers.integrations.flex_attention
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import MASK, Killed, conversations, curve, fit, learner_of, trainer_of, training_logits, write_data
from safetensors.torch import load_file
from tiny import tiny, tokenizer
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import cross_entropy

from decodebench.decoding import Batch, Commit, Draft, PassOutput, Request
from decodebench.errors import UserError
from decodebench.methods.block_diffusion import CONTEXTS, BlockDiffusion
from decodebench.models import LoadedModel, load_model
from decodebench.training.diffusion import Context, drawn, laid_out_length, lay_out
from decodebench.training.layout import IGNORE, Slots, block_mask, sees
from decodebench.training.recipe import Recipe
from decodebench.training.run import dry
from decodebench.training.samples import Sample
from decodebench.training.work import Options

END = int(tokenizer().eos_token_id)
both = pytest.mark.parametrize("context", CONTEXTS)


def all_masked(sample: Sample, rooms: Sequence[int]) -> list[range]:
    return [range(room) for room in rooms]


def blocks_of(sample: Sample, block_size: int, context: Context) -> Iterator[tuple[int, int]]:
    """Where each block's part of the response begins, and where the block ends."""
    start, total = len(sample.prompt), len(sample.prompt) + len(sample.response)
    origin = start if context == "causal" else 0
    for begin in range(origin, total, block_size):
        if begin + block_size > start:
            yield max(begin, start), begin + block_size


def visible(context: Context, block_size: int, query: int, key: int, text: int) -> bool:
    """Whether a position sees another, with so much finished text: the words of the decoder's own test."""
    if query >= text:
        return True
    if context == "causal":
        return key <= query
    return key < text and key // block_size <= query // block_size


SAMPLES = st.builds(
    lambda prompt, response, ends: Sample(tuple(range(10, 10 + prompt)), (*range(100, 100 + response), *[END] * ends)),
    st.integers(1, 9), st.integers(1, 12), st.booleans(),
)  # fmt: skip


@both
@settings(max_examples=25)
@given(samples=st.lists(SAMPLES, min_size=1, max_size=3), block_size=st.integers(2, 6), seed=st.integers(0, 99))
def test_a_slot_sees_and_predicts_what_it_does_in_decoding(
    context: Context, samples: list[Sample], block_size: int, seed: int
) -> None:
    lengths = [laid_out_length(sample, block_size, context) for sample in samples]
    layout = lay_out(
        [samples], sum(lengths) + 3, block_size, MASK, context, END, lambda *given: drawn(seed, 0, *given)
    )  # fmt: skip
    rule = sees(*(Slots(*(column[0][index] for column in layout.slots)) for index in ((..., None), (None, ...))))
    columns = (layout.tokens, layout.slots.noisy, layout.slots.position, layout.targets, layout.offset, layout.weight)
    slots = list(zip(*(column[0].tolist() for column in columns), strict=True))
    assert {slot[3:] for slot in slots[sum(lengths) :]} == {(IGNORE, 0, 0.0)}
    for number, sample in enumerate(samples):
        at = sum(lengths[:number])
        text = [*sample.prompt, *sample.response]
        assert [slot[:3] for slot in slots[at : at + len(text)]] == [(token, False, i) for i, token in enumerate(text)]
        masked = drawn(seed, 0, sample, [min(end, _known(sample, end)) - fill for fill, end in
                                         blocks_of(sample, block_size, context)])  # fmt: skip
        noisy, predicted = at + len(text), 0
        for (fill, end), places in zip(blocks_of(sample, block_size, context), masked, strict=True):
            begin = end - block_size
            whole = text + [END] * (end - len(text)) if text[-1] == END else text
            hidden = {fill + place for place in places}
            fed = text[:fill] + [MASK if i in hidden or i >= len(whole) else whole[i] for i in range(fill, end)]
            for place in range(begin, end):
                slot = noisy + place - begin
                assert slots[slot][:3] == (fed[place], True, place)
                shown = [slots[k][0] for k in rule[slot].nonzero()[:, 0].tolist()]
                assert shown == [t for k, t in enumerate(fed) if visible(context, block_size, place, k, fill)]
            for place in range(fill, end):
                # the state before a position predicts it: in the noisy block, but for what the block begins with
                slot = at + place - 1 if place == begin else noisy + place - 1 - begin
                if place in hidden:
                    weight = (min(end, len(whole)) - fill) / len(hidden)
                    assert slots[slot][3:] == (whole[place], place - fill + 1, pytest.approx(weight))
                    shown = [slots[k][0] for k in rule[slot].nonzero()[:, 0].tolist()]
                    assert shown == [t for k, t in enumerate(fed) if visible(context, block_size, place - 1, k, fill)]
                    predicted += 1
            noisy += block_size
        assert noisy == at + lengths[number]
        assert sum(slot[3] != IGNORE for slot in slots[at:noisy]) == predicted == sum(map(len, masked))
        # clean text as later blocks see it
        for place in range(len(text)):
            shown = [slots[k][0] for k in rule[at + place].nonzero()[:, 0].tolist()]
            assert shown == [t for k, t in enumerate(text) if visible(context, block_size, place, k, len(text))]


def _known(sample: Sample, end: int) -> int:
    return end if sample.response[-1] == END else len(sample.prompt) + len(sample.response)


def test_masks_are_drawn_evenly_and_the_same_for_the_same_seed_epoch_and_sample() -> None:
    sample, rooms = Sample((1, 2), (3, 4, 5)), [3] + [4] * 3000 + [1]
    found = drawn(0, 0, sample, rooms)
    assert found == drawn(0, 0, sample, rooms)
    others = [drawn(1, 0, sample, rooms), drawn(0, 1, sample, rooms), drawn(0, 0, Sample((1,), (2, 3)), rooms)]
    assert all(other != found for other in others)
    assert all(len(set(masked)) == len(masked) >= 1 for masked in found)
    assert all(set(masked) <= set(range(room)) for masked, room in zip(found, rooms, strict=True))
    counts = Counter(len(masked) for masked in found[1:-1])
    assert all(abs(counts[n] - 750) < 100 for n in (1, 2, 3, 4))
    places = Counter(place for masked in found[1:-1] for place in masked)
    assert all(abs(places[n] - 1875) < 150 for n in range(4))  # 2.5 of 4 at a time


MODELS = {"qwen2": {}, "llama": {"tie_word_embeddings": True}}
ROWS = [
    [Sample((5, 9, 30), (41, 17, 88, 200, 9, 9, END)), Sample((7,), (8,)), Sample((60, 61, 6, 6), (62, 63, END))],
    [Sample((12, 250, 3, 3, 99), (14, 15, 16, 17, 18, 19, 20, 21))],
]


def slow_loss(model: Any, samples: list[Sample], block_size: int, context: Context, seed: int) -> torch.Tensor:
    """One dense pass per block: finished text, then the block with its masks."""
    total: Any = 0.0
    for sample in samples:
        text = [*sample.prompt, *sample.response]
        places = list(blocks_of(sample, block_size, context))
        whole = (text + [END] * block_size)[: _known(sample, places[-1][1])]
        rooms = [min(end, len(whole)) - fill for fill, end in places]
        for (fill, end), room, masked in zip(places, rooms, drawn(seed, 0, sample, rooms), strict=True):
            hidden = [fill + place for place in masked]
            fed = text[:fill] + [MASK if i in hidden or i >= len(whole) else whole[i] for i in range(fill, end)]
            rule = torch.tensor([
                [visible(context, block_size, q, k, fill) for k in range(end)] for q in range(end)
            ])  # fmt: skip
            mask = torch.zeros(rule.shape).masked_fill(~rule, -math.inf)[None, None]
            logits = model(torch.tensor([fed]), attention_mask=mask).logits[0]
            targets = torch.tensor([whole[i] for i in hidden])
            states = torch.tensor(hidden) - 1
            total = total + room / len(hidden) * cross_entropy(logits[states], targets, reduction="sum")
    return total / sum(len(sample.response) for sample in samples)


@both
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("block_size", [2, 4, 16])
def test_the_packed_loss_and_its_gradients_are_those_of_one_pass_per_block(
    kind: str, block_size: int, context: Context, tmp_path: Path
) -> None:
    learner = learner_of(tiny(kind, **MODELS[kind]))
    trainer = trainer_of(
        learner, tmp_path, 128, objective="block-diffusion", block_size=block_size, context=context, seed=5
    )
    loss = trainer.compute_loss(learner.model, trainer.collate(ROWS))
    parameters = [p for p in learner.model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters)
    learner.model.set_attn_implementation("sdpa")
    expected = slow_loss(learner.model, [sample for row in ROWS for sample in row], block_size, context, 5)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    for one, other in zip(found, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@both
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_predicts_the_same(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on CUDA, here without its compiler."""
    monkeypatch.setattr(
        transformers.integrations.flex_attention, "WrappedFlexAttention", lambda _: lambda: flex_attention
    )
    model = learner_of(tiny("qwen2"), full=False).model
    layout = lay_out(ROWS, 128, 4, MASK, context, END, all_masked)
    expected = training_logits(model, layout)
    model.set_attn_implementation("flex_attention")
    mask: Any = block_mask(layout.slots)
    found = model(layout.tokens, attention_mask=mask, position_ids=layout.slots.position, use_cache=False).logits
    real = layout.slots.sample >= 0
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-4)


def decoded(model: LoadedModel, prompt: list[int], new: int, **knobs: Any) -> tuple[Sample, list[tuple[Any, ...]]]:
    """An answer, and of each pass that wrote it: committed tokens, the block (−1: masked), and logits."""
    seen: list[tuple[Any, ...]] = []

    class Watched(BlockDiffusion):
        def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
            seen.append((int(batch.total[0]), batch.state[0].tolist(), out.logits[0].clone()))
            return super().accept(batch, draft, out)

    (generation,) = Watched(**knobs).generator(model, 1).generate([Request(prompt, new)])
    return Sample(tuple(prompt), tuple(generation.tokens)), seen


@both
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("prompt", "block_size"), [(8, 4), (6, 4), (7, 5), (1, 3)])
def test_training_sees_what_decoding_sees_in_every_pass_over_a_half_filled_block(
    kind: str, prompt: int, block_size: int, context: Context
) -> None:
    model = tiny(kind, stop=False, logit_scale=3.0, **MODELS[kind])
    left = 0 if context == "causal" else prompt % block_size
    sample, passes = decoded(
        model, list(range(20, 20 + prompt)), 3 * block_size - left, block_size=block_size, context=context, tau=1.0
    )
    learner = learner_of(model, full=False)
    assert len({total for total, *_ in passes}) == 3
    assert len(passes) == len(sample.response)
    for total, block, logits in passes:
        at = next(n for n, (fill, _) in enumerate(blocks_of(sample, block_size, context)) if fill == total)

        def half_filled(
            of: Sample, rooms: Sequence[int], at: int = at, block: Sequence[int] = block
        ) -> list[list[int]]:
            here = [place for place in range(rooms[at]) if block[place] < 0]
            return [here if n == at else list(range(room)) for n, room in enumerate(rooms)]

        length = laid_out_length(sample, block_size, context)
        layout = lay_out([[sample]], length, block_size, MASK, context, END, half_filled)
        found = training_logits(learner.model, layout)[0]
        compared = 0
        for slot in range(length):
            place = int(layout.slots.position[0, slot]) + 1 - total
            target = int(layout.targets[0, slot])
            if target != IGNORE and 0 <= place < block_size and place + 1 == int(layout.offset[0, slot]):
                torch.testing.assert_close(found[slot], logits[place], atol=1e-4, rtol=1e-4)
                compared += 1
        room = block_size - (left if at == 0 else 0)
        assert compared == sum(token < 0 for token in block[:room])


# Runs


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("place")
    harness.save_tiny(folder / "model")
    write_data(folder / "data.jsonl", conversations())
    before = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def of(**changes: Any) -> dict[str, Any]:
    names = {"objective": "block-diffusion", "model": "model", "data": "data.jsonl"}
    return names | {"learning_rate": 1e-2, "max_steps": 5} | changes


@both
def test_it_learns_and_decodes_as_it_was_trained(
    context: Context, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    changes = {"context": context, "full": True, "learning_rate": 2e-2, "max_steps": 40, "block_size": 5}
    card, lines = fit(out, save_steps=100, **of(**changes))
    for name in ("first_loss", "further_loss"):
        assert curve(out, name)[-1] < 0.4 * curve(out, name)[0]
    assert " · accuracy " in lines[-1]
    assert (card["diffusion_block_size"], card["diffusion_context"], card["mask_token"]) == (5, context, "<mask>")
    assert "block_size" not in card
    assert card["recipe"]["context"] == context
    assert not {"ar_weight", "gated", "heads", "layers", "exit_layer"} & card["recipe"].keys()
    ahead = [f"accuracy_{n}" for n in range(2, 6)]
    assert list(card["held_out"]) == ["first_loss", "first_accuracy", "further_loss", "further_accuracy", *ahead]
    model = load_model(str(out), device="cpu")
    method = BlockDiffusion(tau=1.0)
    prompt = model.tokenizer("Ann has 3 apples and buys 4 more and buys 4 more and buys 4 more?")["input_ids"]
    (generation,) = method.generator(model, 1).generate([Request(prompt, 40)])
    assert (method.block_size, method.context) == (5, context)
    assert not caplog.records
    assert generation.finish == "stop_token"


def test_a_killed_run_ends_as_if_it_had_not_been_in_whatever_epoch(tmp_path: Path) -> None:
    recipe = of(max_steps=0, epochs=3.0, batch_size=2)
    card, _ = fit(tmp_path / "unbroken", save_steps=3, **recipe)
    steps = card["steps"]
    assert card["plan"]["rows"] // 2 * 3 == steps
    with pytest.raises(Killed):
        fit(tmp_path / "broken", kill_at="step 5/", save_steps=3, **recipe)
    with pytest.raises(Killed):
        fit(tmp_path / "broken", kill_at=f"step {steps - 1}/", save_steps=3, **recipe)
    again, _ = fit(tmp_path / "broken", save_steps=3, **recipe)
    for name in ("loss", "first_loss", "further_loss", "grad_norm"):
        assert curve(tmp_path / "broken", name) == curve(tmp_path / "unbroken", name)
    assert again["held_out"] == card["held_out"]
    one, other = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("unbroken", "broken"))
    torch.testing.assert_close(one, other, atol=0, rtol=0)
    # one row at a time is the same
    fit(tmp_path / "divided", **of(max_steps=0, epochs=3.0, batch_size=2, micro_batch=1))
    assert curve(tmp_path / "divided", "loss") == pytest.approx(curve(tmp_path / "unbroken", "loss"), rel=1e-4)


def test_every_epoch_has_masks_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, Sample]] = []

    def recorded(seed: int, epoch: int, sample: Sample, rooms: Sequence[int]) -> list[list[int]]:
        asked.append((epoch, sample))
        return drawn(seed, epoch, sample, rooms)

    monkeypatch.setattr("decodebench.training.diffusion.drawn", recorded)
    card, _ = fit(tmp_path / "out", **of(max_steps=0, epochs=2.0, batch_size=2))
    epochs = {epoch: [sample for other, sample in asked if other == epoch] for epoch in (-1, 0, 1)}
    assert len(asked) == sum(map(len, epochs.values()))
    assert set(epochs[0]) == set(epochs[1])
    assert len(epochs[0]) == len(epochs[1]) == card["data"]["samples"]
    assert len(epochs[-1]) == 6  # held out


def test_a_dry_run_plans(tmp_path: Path) -> None:
    lines = dry(Recipe(**of(batch_size=4, micro_batch=4, eval_samples=4)), Options(tmp_path / "dry", device="cpu"))
    assert "s per step" in lines[-1]
    assert not (tmp_path / "dry").exists()


def test_mistakes_are_named(tmp_path: Path) -> None:
    for changes, message in (
        ({"block_size": 1}, "--block-size 1: must be at least 2"),
        ({"gated": True}, "--gated is not for block-diffusion: leave it away"),
        ({"mask_token": "<gone>"}, "--mask-token '<gone>' is not in the vocabulary of model"),
    ):
        with pytest.raises(UserError, match=f"^{message}"):
            fit(tmp_path / "out", **of(**changes))
    assert not (tmp_path / "out").exists()


def test_contexts_are_those_of_the_decoder() -> None:
    assert set(get_args(Context)) == set(CONTEXTS)
