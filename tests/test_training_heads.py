"""Heads on a frozen model: their loss against slow references, training runs, and what decoding makes of the result."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import Killed, conversations, curve, fit, learner_of, trainer_of, write_data
from safetensors.torch import load_file
from tiny import run, tiny, tokens
from torch.nn.functional import cross_entropy, silu

from decodebench import cli
from decodebench.decoding import Request
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.medusa import Medusa
from decodebench.methods.speculative import Speculative
from decodebench.models import LoadedModel, load_model
from decodebench.models.medusa_heads import load_heads
from decodebench.training.conversations import read_conversations
from decodebench.training.heads import Headed
from decodebench.training.layout import IGNORE, lay_out, look_ahead
from decodebench.training.learner import prepare
from decodebench.training.recipe import Recipe
from decodebench.training.run import dry
from decodebench.training.samples import Sample
from decodebench.training.work import Options

KINDS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "llama": {"tie_word_embeddings": True},
    "granite": {"logits_scaling": 3.0},  # heads must not see what it does to its logits
    "gpt2": {"n_layer": 3},
}
ROWS = [
    [Sample((5, 9, 30), (41, 17, 88, 200, 9, 9, 31)), Sample((7,), (8,)), Sample((60, 61), (62, 63, 64))],
    [Sample((12, 250, 3, 3, 99), (14, 15, 16, 17, 18, 19, 20, 21))],
]


def headed(model: LoadedModel, heads: int, layers: int = 1, exit_layer: int | None = None) -> Headed:
    """Heads on a copy of a model, with random weights."""
    torch.manual_seed(3)
    found = Headed(learner_of(model, full=False).model, heads, layers, exit_layer)
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return found


def unembed(model: Any) -> torch.Tensor:
    return model.get_output_embeddings().weight


def training_loss(net: Headed, model: LoadedModel, folder: Path, **recipe: Any) -> torch.Tensor:
    """Of `ROWS`, as a training step has it."""
    learner = dataclasses.replace(learner_of(model), model=net, mask_id=-1)
    trainer = trainer_of(learner, folder, 64, full=False, **recipe)
    loss = trainer.compute_loss(net, trainer.collate(ROWS))
    net.set_attn_implementation("sdpa")
    return loss


def grown(net: Headed, head: int, hidden: torch.Tensor) -> torch.Tensor:
    """A head's states, as the paper writes them down."""
    for weight, bias in zip(net.weight[head], net.bias[head], strict=True):
        hidden = hidden + silu(hidden @ weight.T + bias)
    return hidden


def assert_same_gradients(net: Headed, loss: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    found, slow = (torch.autograd.grad(each, list(net.parameters())) for each in (loss, expected))
    for one, other in zip(found, slow, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "layers"), [(4, 1), (2, 2)])
def test_the_loss_of_medusa_is_that_of_one_head_and_sample_at_a_time(
    kind: str, heads: int, layers: int, tmp_path: Path
) -> None:
    model = tiny(kind, **KINDS[kind])
    net = headed(model, heads, layers)
    loss = training_loss(net, model, tmp_path, objective="medusa", heads=heads, layers=layers)
    expected: Any = 0.0
    for sample in (sample for row in ROWS for sample in row):
        text, start = [*sample.prompt, *sample.response], len(sample.prompt)
        hidden = net.base(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0]
        for head in range(heads):
            first = start - 1  # the last token of the prompt
            targets = torch.tensor(text[first + head + 2 :], dtype=torch.long)
            states = grown(net, head, hidden[first : first + len(targets)])
            logits = states @ unembed(net).T
            expected = expected + 0.8**head * cross_entropy(logits, targets, reduction="sum")
    assert_same_gradients(net, loss, expected / sum(len(sample.response) for row in ROWS for sample in row))


@pytest.mark.parametrize("kind", KINDS)
def test_an_exit_learns_what_the_whole_model_says_from_its_first_layers(kind: str, tmp_path: Path) -> None:
    model = tiny(kind, **(KINDS[kind] | {"num_hidden_layers": 3}))
    net = headed(model, 1, exit_layer=2)
    loss = training_loss(net, model, tmp_path, objective="draft", exit_layer=2)
    short = learner_of(model, full=False).model
    stack = short.transformer if kind == "gpt2" else short.model
    name = "h" if kind == "gpt2" else "layers"
    setattr(stack, name, getattr(stack, name)[:2])
    states: list[torch.Tensor] = []
    short.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    expected: Any = 0.0
    for sample in (sample for row in ROWS for sample in row):
        text, start = torch.tensor([[*sample.prompt, *sample.response]]), len(sample.prompt)
        short(text)
        said = net.base(text).logits[0].argmax(-1)
        logits = grown(net, 0, states[-1][0]) @ unembed(net).T
        learnt = slice(start - 1, text.shape[1] - 1)
        expected = expected + cross_entropy(logits[learnt], said[learnt], reduction="sum")
    assert_same_gradients(net, loss, expected / sum(len(sample.response) for row in ROWS for sample in row))


@settings(max_examples=25)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=4),
    distances=st.lists(st.integers(0, 6), min_size=1, max_size=5),
)
def test_heads_look_ahead_within_the_response_of_their_sample(
    lengths: list[tuple[int, int]], distances: list[int]
) -> None:
    ids = iter(range(10_000))
    samples = [Sample(*(tuple(next(ids) for _ in range(n)) for n in pair)) for pair in lengths]
    layout = look_ahead(lay_out([samples], 64, None), distances, 0.5)
    rows: list[list[tuple[int, int, float]]] = []
    for sample in samples:
        text, start = [*sample.prompt, *sample.response], len(sample.prompt)
        for place in range(len(text)):
            slot = [(IGNORE, 0, 0.0)] * len(distances)
            for head, distance in enumerate(distances):
                if place >= start - 1 and place + distance + 1 < len(text):
                    slot[head] = (text[place + distance + 1], distance + 1, 0.5**head)
            rows.append(slot)
    found = zip(*(part[0].tolist() for part in (layout.targets, layout.offset, layout.weight)), strict=True)
    assert [list(zip(*slot, strict=True)) for slot in found] == [
        *rows, *[[(IGNORE, 0, 0.0)] * len(distances)] * (64 - len(rows))
    ]  # fmt: skip


def test_heads_begin_with_what_the_model_says_next() -> None:
    model = tiny("llama")
    net = Headed(model.model, 3, 2)
    text = torch.tensor([[5, 6, 7, 8]])
    states = net(input_ids=text, use_cache=False).logits
    predicted = (states @ unembed(model.model).T).argmax(-1)
    assert torch.equal(predicted, model.model(text).logits.argmax(-1)[..., None].expand(-1, -1, 3))


# Runs


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``data.jsonl`` and a ``model`` that knows its answers by heart."""
    folder = tmp_path_factory.mktemp("place")
    harness.save_tiny(folder / "base", num_hidden_layers=3)
    data = write_data(folder / "data.jsonl", conversations())
    learnt: dict[str, Any] = {"objective": "ar-sft", "model": str(folder / "base"), "data": str(data), "full": True}
    fit(folder / "model", save_steps=100, learning_rate=1e-2, max_steps=60, eval_samples=0, **learnt)
    return folder


def of(place: Path, objective: str, **changes: Any) -> dict[str, Any]:
    """A recipe for heads on that model."""
    settings = {"model": str(place / "model"), "data": str(place / "data.jsonl"), "learning_rate": 2e-2}
    return {"objective": objective, "exit_layer": 1, "max_steps": 5} | settings | changes


@pytest.fixture(scope="module")
def trained(place: Path) -> dict[str, Path]:
    """Heads for Medusa and for an early exit that know the answers, too."""
    for objective in ("medusa", "draft"):
        fit(place / objective, save_steps=100, **of(place, objective, max_steps=40, eval_samples=0))
    return {name: place / name for name in ("draft", "medusa")}


def test_heads_learn_and_the_lines_say_so(trained: dict[str, Path]) -> None:
    for head in range(2, 6):
        rates = curve(trained["medusa"], f"accuracy_{head}")
        assert rates[-1] > 0.5 > 0.1 > rates[0]
    rates = curve(trained["draft"], "draft_accuracy")
    assert rates[-1] > rates[0] + 0.2


def test_the_folder_holds_heads_and_their_card(trained: dict[str, Path], place: Path) -> None:
    files = {"config.json", "medusa_lm_head.safetensors", "card.json", "recipe.json", "trainer_state.json"}
    for folder in trained.values():
        assert {path.name for path in folder.iterdir()} == files
    model = load_model(str(place / "model"), device="cpu")
    shapes = {name: tuple(load_heads(str(folder), model).weight.shape) for name, folder in trained.items()}
    assert shapes == {"medusa": (4, 1, 32, 32), "draft": (1, 1, 32, 32)}
    cards = {name: json.loads((folder / "card.json").read_text()) for name, folder in trained.items()}
    assert cards["draft"]["exit_layer"] == 1
    assert cards["medusa"]["base"] == cards["draft"]["base"] == str(place / "model")
    for card, own, others in (
        (cards["medusa"], {"heads", "layers"}, {"exit_layer"}),
        (cards["draft"], {"exit_layer"}, {"heads", "layers"}),
    ):
        assert own <= card["recipe"].keys()
        assert (
            not (others | {"block_size", "lora_rank", "full", "gated", "mask_token", "context"}) & card["recipe"].keys()
        )
        assert "mask_token" not in card


def test_what_was_learnt_drafts_and_the_text_stays_the_models_own(trained: dict[str, Path], place: Path) -> None:
    model = load_model(str(place / "model"), dtype="float32", device="cpu")
    prompts = [one.prompt[0]["content"] for one in read_conversations(str(place / "data.jsonl"))]
    requests = [Request(model.tokenizer(prompt)["input_ids"], 40) for prompt in prompts]
    expected = run(model, AR(), requests)
    passes = {}
    for head in ("none", str(trained["draft"])):
        drafted = run(model, Speculative(draft_source=f"early-exit:1:{head}", k="3"), requests)
        assert tokens(drafted) == tokens(expected)
        passes[head] = sum(one.passes for one in drafted)
    assert passes[str(trained["draft"])] < 0.9 * passes["none"], passes

    pytest.importorskip("medusa.model.utils", reason="needs the package medusa-llm, extra decodebench[medusa]")
    heads = run(model, Medusa(heads=str(trained["medusa"])), requests)
    assert tokens(heads) == tokens(expected)
    assert sum(one.passes for one in heads) < 0.6 * sum(len(one.tokens) for one in heads)


def test_the_head_of_an_exit_is_the_cards_unless_another_is_named(trained: dict[str, Path], place: Path) -> None:
    model = load_model(str(place / "model"), dtype="float32", device="cpu")
    carded = dataclasses.replace(model, card={"exit_heads": {"1": str(trained["draft"])}})

    def head(model: LoadedModel, draft: str) -> bool:
        method = Speculative(draft_source=draft)
        method.bind(model)
        return method.source.drafter.head is not None

    assert head(carded, "early-exit:1")
    assert not head(carded, "early-exit:2")
    assert not head(carded, "early-exit:1:none")
    assert not head(model, "early-exit:1")
    assert head(model, f"early-exit:1:{trained['draft']}")
    # a folder beside the model, as shipped ones are
    beside = dataclasses.replace(model, name=str(place), card={"exit_heads": {"1": "draft"}})
    assert head(beside, "early-exit:1")
    for draft, message in (
        (f"early-exit:2:{trained['draft']}", r"head '.*draft' was trained for early-exit:1$"),
        (f"early-exit:1:{trained['medusa']}", r"'.*medusa' holds heads for Medusa, not one for an exit$"),
        ("early-exit:1:nowhere", "heads folder 'nowhere' does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            head(model, draft)


@pytest.mark.parametrize("objective", ["medusa", "draft"])
def test_the_model_is_not_trained_and_a_killed_run_ends_as_if_it_had_not_been(
    objective: str, place: Path, tmp_path: Path
) -> None:
    before = load_file(place / "model" / "model.safetensors")
    recipe = of(place, objective)
    card, expected = fit(tmp_path / "unbroken", **recipe)
    with pytest.raises(Killed):
        fit(tmp_path / "broken", kill_at="step 4/", **recipe)
    (save,) = (tmp_path / "broken" / "state").glob("checkpoint-2/*.safetensors")
    assert load_file(save).keys() == {"weight", "bias"}
    again, lines = fit(tmp_path / "broken", **recipe)
    assert "going on from step 2" in lines
    said, unmoved = ([line.split(" · ")[:-2] for line in some[-3:]] for some in (lines, expected))  # less the times
    assert said == unmoved
    assert card["held_out"] == again["held_out"]
    names = {"medusa": ["heads_loss", "heads_accuracy", *(f"accuracy_{i}" for i in range(2, 6))],
             "draft": ["draft_loss", "draft_accuracy"]}  # fmt: skip
    assert list(card["held_out"]) == names[objective]
    one, other = (load_file(tmp_path / name / "medusa_lm_head.safetensors") for name in ("unbroken", "broken"))
    torch.testing.assert_close(one, other, atol=0, rtol=0)
    torch.testing.assert_close(load_file(place / "model" / "model.safetensors"), before, atol=0, rtol=0)


def test_training_moves_heads_and_nothing_else(place: Path, tmp_path: Path) -> None:
    learner = prepare(Recipe("draft", str(place / "model"), "none", exit_layer=1), device="cpu")
    model = learner.model.base
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = trainer_of(learner, tmp_path, 64, objective="draft", full=False, exit_layer=1)
    trainer.compute_loss(learner.model, trainer.collate(ROWS)).backward()
    assert {name for name, p in learner.model.named_parameters() if p.grad is not None} == {"weight", "bias"}
    assert not any(p.requires_grad for p in model.parameters())
    assert not model.training
    torch.optim.SGD(learner.model.parameters(), 1.0).step()
    torch.testing.assert_close(dict(model.state_dict()), before, atol=0, rtol=0)
    assert len(model.model.layers) == 3  # whole again


def test_a_dry_run_plans(place: Path, tmp_path: Path) -> None:
    for objective, weights in (("medusa", 4 * 33 * 32), ("draft", 33 * 32)):
        recipe = Recipe(**of(place, objective, batch_size=4, micro_batch=4, eval_samples=4))
        lines = dry(recipe, Options(tmp_path / "dry", device="cpu"))
        assert lines[2].startswith(f"{weights / 1e6:.1f}M trained weights, about ")
        assert "s per step" in lines[3]
    assert not (tmp_path / "dry").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "draft", "exit_layer": 3}, "--exit-layer 3: .*model has 3 layers, choose from 1 to 2 of them"),
        ({"objective": "draft", "exit_layer": 0}, "--exit-layer 0: must be at least 1"),
        ({"heads": 0}, "--heads 0: must be at least 1"),
        ({"layers": 0}, "--layers 0: must be at least 1"),
        ({"full": True}, "--full is not for medusa: leave it away"),
        ({"gated": True}, "--gated is not for medusa: leave it away"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str, place: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^{message}$"):
        fit(tmp_path / "out", **of(place, **({"objective": "medusa"} | changes)))
    assert not (tmp_path / "out").exists()


def test_the_command_line_knows_what_each_objective_needs(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["decodebench", "train", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    code, said, _ = call("--help")
    assert code == 0
    assert all(f" {name} " in said for name in ("mars", "ar-sft", "medusa", "draft", "block-diffusion"))
    names = ("--model", str(place / "model"), "--data", str(place / "data.jsonl"), "--out", str(tmp_path / "out"))
    for arguments, words in (
        (("medusa", "--heads", "0"), "--heads 0: must be at least 1"),
        (("medusa", "--gradient-checkpointing"), "No such option: --gradient-checkpointing"),
        (("draft", "--exit-layer", "7"), "choose from 1 to 2 of them"),
        (("draft", "--full"), "No such option: --full"),
        (("block-diffusion", "--context", "both"), "both"),
        (("block-diffusion", "--ar-weight", "1"), "No such option: --ar-weight"),
    ):
        code, said, error = call(*arguments, *names, "--device", "cpu")
        assert (code, said) == (2, "")
        assert error.startswith("error: ")
        assert words in error
        assert len(error.splitlines()) == 1
    more = ("--row-length=128", "--batch-size=2", "--max-steps=2", "--eval-samples=4", "--log-steps=1")
    for objective, form in (
        ("medusa", r"step 2/2 · heads loss \d+\.\d+ · accuracy \d\.\d\d( \d\.\d\d){3} · \d+ tokens/s · 0:00 left"),
        ("draft", r"step 2/2 · draft loss \d+\.\d+ · accuracy \d\.\d\d · \d+ tokens/s · 0:00 left"),
    ):
        chosen = ("--exit-layer=1",) if objective == "draft" else ()
        out = tmp_path / objective
        code, said, error = call(objective, *names[:-1], str(out), "--device=cpu", *more, *chosen)
        assert code == 0, error
        assert re.fullmatch(form, error.splitlines()[-1])
        figures = {name: float(value) for name, value in (line.split() for line in said.splitlines())}
        assert figures == json.loads((out / "card.json").read_text())["held_out"]


def test_too_little_memory_is_not_answered_with_an_option_that_is_not_there(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decodebench.training.work.available_memory", lambda _: 1 << 20)
    with pytest.raises(UserError, match=r"MiB are free: lower --micro-batch or --max-length$"):
        fit(tmp_path / "out", **of(place, "medusa"))
