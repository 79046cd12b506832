"""Medusa: greedy text stays autoregressive whatever the heads and the tree; the rest against slow references."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny import Recording, run, tiny, tokens

from decodebench.decoding import Request, Sampling
from decodebench.decoding.engine import Engine
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.medusa import Medusa, build_tree
from decodebench.models import LoadedModel
from decodebench.models.medusa_heads import MedusaHeads, load_heads, save_heads

pytest.importorskip("medusa.model.utils", reason="needs the package medusa-llm, extra decodebench[medusa]")

WORDS = 10  # so few that random heads are often right
HEADS = 4


def target(**config: Any) -> LoadedModel:
    return tiny("llama", vocab_size=WORDS, logit_scale=2.0, **config)


def random_heads(own: bool = False, size: int = 32, layers: int = 1, words: int = WORDS, seed: int = 0) -> MedusaHeads:
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(HEADS, layers, size, size, generator=draw) * 0.3
    bias = torch.randn(HEADS, layers, size, generator=draw)
    return MedusaHeads(weight, bias, torch.randn(HEADS, words, size, generator=draw) if own else None)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Heads that share the model's unembedding, and heads with their own, of two layers."""
    folder = tmp_path_factory.mktemp("heads")
    save_heads(random_heads(), folder / "shared", "tiny")
    save_heads(random_heads(own=True, layers=2), folder / "own", "tiny")
    return {"shared": str(folder / "shared"), "own": str(folder / "own")}


@st.composite
def tree_texts(draw: st.DrawFn) -> str:
    """A random tree of up to 12 nodes, in random order."""
    paths: list[tuple[int, ...]] = [(draw(st.integers(0, 3)),)]
    for _ in range(draw(st.integers(0, 11))):
        parent = draw(st.sampled_from([(), *[path for path in paths if len(path) < HEADS]]))
        paths.append((*parent, draw(st.integers(0, 3))))
    unique = draw(st.permutations(sorted(set(paths))))
    return ";".join(".".join(map(str, path)) for path in unique)


REQUESTS = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(1, WORDS - 1), min_size=1, max_size=30),
        max_new_tokens=st.integers(1, 20),
        sampling=st.sampled_from([Sampling(), Sampling(), Sampling(0.9, top_p=0.9, seed=4)]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40)
@given(
    requests=REQUESTS,
    tree=st.one_of(tree_texts(), st.sampled_from(["default", "chain", "wide"])),
    kind=st.sampled_from(["shared", "own"]),
    batch_size=st.integers(1, 4),
    batching=st.sampled_from(["continuous", "static"]),
)
def test_text_is_the_autoregressive_text(
    folders: dict[str, str], requests: list[Request], tree: str, kind: str, batch_size: int, batching: str
) -> None:
    model = target()
    expected = tokens(run(model, AR(), requests, batch_size=6))
    decoder = Medusa(heads=folders[kind], tree=tree)
    assert tokens(run(model, decoder, requests, batch_size, batching=batching)) == expected


@pytest.mark.parametrize("kind", ["llama", "gpt2"])  # gpt2 has a table of positions, with nothing beyond its end
def test_rows_fill_the_context_to_its_last_position(folders: dict[str, str], kind: str) -> None:
    size: dict[str, Any] = {"vocab_size": WORDS, "max_position_embeddings": 48, "n_positions": 48, "stop": False}
    model = tiny(kind, **size)
    requests = [Request([1] * n, 500) for n in (1, 20, 47)]
    generations = run(model, Medusa(heads=folders["shared"], tree="wide"), requests, batch_size=3)
    assert [len(g.tokens) for g in generations] == [47, 28, 1]
    assert tokens(generations) == tokens(run(model, AR(), requests, batch_size=3))


def test_right_candidates_save_passes(folders: dict[str, str]) -> None:
    requests = [Request([1 + n, 2], 24) for n in range(6)]
    generations = run(target(stop=False), Medusa(heads=folders["shared"], tree="wide"), requests, 3)
    committed = [n for generation in generations for n in generation.committed]
    assert max(committed) >= 3
    assert sum(committed) / len(committed) > 1.3


def test_real_prompts_give_the_autoregressive_text(
    embedded: LoadedModel, questions: list[list[int]], tmp_path: Path
) -> None:
    heads = random_heads(size=576)
    heads.weight.zero_()
    heads.bias.zero_()  # every head says what the model does
    save_heads(heads, tmp_path, "smollm2-135m")
    requests = [Request(prompt, limit) for prompt, limit in zip(questions, (10, 4, 7), strict=False)]
    expected = tokens(run(embedded, AR(), requests, batch_size=3))
    assert tokens(run(embedded, Medusa(heads=str(tmp_path)), requests, batch_size=2)) == expected


@settings(max_examples=60)
@given(tree_texts())
def test_the_buffers_are_those_of_the_tree(text: str) -> None:
    paths = sorted((tuple(map(int, p.split("."))) for p in text.split(";")), key=lambda p: (len(p), p))
    tree = build_tree(text, HEADS)
    assert tree.widths == tuple(
        1 + max(p[d] for p in paths if len(p) > d) for d in range(max(len(path) for path in paths))
    )
    assert tree.depth.tolist() == [len(path) - 1 for path in paths]
    assert tree.candidate.tolist() == [sum(tree.widths[: len(p) - 1]) + p[-1] for p in paths]
    assert tree.mask.tolist() == [[path[: len(other)] == other for other in paths] for path in paths]
    assert tree.parent.tolist() == [1 + paths.index(p[:-1]) if len(p) > 1 else 0 for p in paths]
    for path, way in zip(paths, tree.path.tolist(), strict=True):
        assert way[: len(path)] == [paths.index(path[: n + 1]) for n in range(len(path))]


class Slow:
    """What Medusa is, one row at a time and in plain loops over the stock model, without a cache."""

    def __init__(self, model: LoadedModel, heads: MedusaHeads, tree: str) -> None:
        self.model, self.heads = model.model, heads
        self.paths = sorted((tuple(map(int, p.split("."))) for p in tree.split(";")), key=lambda p: (len(p), p))

    @torch.inference_mode()
    def candidates(self, text: list[int]) -> list[list[int]]:
        """Of each head, most probable first, after a text whose last token the model has just chosen."""
        hidden = self.model.model(torch.tensor([text[:-1]])).last_hidden_state[0, -1]
        found = []
        for head in range(HEADS):
            state = hidden
            for weight, bias in zip(self.heads.weight[head], self.heads.bias[head], strict=True):
                state = state + torch.nn.functional.silu(weight @ state + bias)
            own = self.heads.unembedding
            unembed = self.model.lm_head.weight if own is None else own[head]
            found.append((unembed @ state).argsort(descending=True).tolist())
        return found

    @torch.inference_mode()
    def typical(self, prompt: list[int], limit: int, epsilon: float, delta: float) -> tuple[list[int], list[int]]:
        """Tokens, and how many of them each pass commits."""
        text = [*prompt, int(self.model(torch.tensor([prompt])).logits[0, -1].argmax())]
        committed = [1]
        while len(text) - len(prompt) < limit:
            candidates = self.candidates(text)
            best: tuple[int, float, list[int]] = (0, 0.0, [])
            for path in self.paths:
                branch = [candidates[depth][rank] for depth, rank in enumerate(path)]
                logits = self.model(torch.tensor([text + branch])).logits[0, len(text) - 1 : -1]
                p = logits.softmax(-1)
                threshold = (delta * torch.exp((p * p.log()).sum(-1))).clamp(max=epsilon)
                chosen = p[torch.arange(len(branch)), torch.tensor(branch)]
                if (chosen > threshold).all():
                    best = max(best, (len(branch), float(chosen.log().sum()), branch), key=lambda found: found[:2])
            new = best[2]
            new.append(int(self.model(torch.tensor([text + new])).logits[0, -1].argmax()))
            new = new[: limit - (len(text) - len(prompt))]
            text += new
            committed.append(len(new))
        return text[len(prompt) :], committed


class Recorded(Recording, Medusa):
    pass


TREE = "0;1;2;0.0;0.1;1.0;0.0.0;0.0.1;1.0.0;0.0.0.0"
PROMPTS = [[1 + n] * (1 + 5 * n) for n in range(5)]


@pytest.mark.parametrize("kind", ["shared", "own"])
def test_candidates_are_the_heads_best(folders: dict[str, str], kind: str) -> None:
    model = target(stop=False)
    decoder = Recorded(heads=folders[kind], tree=TREE)
    run(model, decoder, [Request(prompt, 12) for prompt in PROMPTS], batch_size=3)
    slow = Slow(model, load_heads(folders[kind], model), TREE)
    assert len(decoder.seen) > 15
    for text, guesses in decoder.seen:
        candidates = slow.candidates(text)
        assert guesses == [candidates[len(path) - 1][path[-1]] for path in slow.paths]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.09, 0.3), (0.3, 0.6), (1.0, 0.2)])
def test_typical_acceptance_keeps_the_longest_and_likeliest_branch(
    folders: dict[str, str], epsilon: float, delta: float
) -> None:
    model = target(stop=False)
    decoder = Medusa(heads=folders["shared"], tree=TREE, acceptance="typical", epsilon=epsilon, delta=delta)
    generations = run(model, decoder, [Request(prompt, 14) for prompt in PROMPTS], batch_size=2)
    slow = Slow(model, load_heads(folders["shared"], model), TREE)
    expected = [slow.typical(prompt, 14, epsilon, delta) for prompt in PROMPTS]
    assert [(g.tokens, g.committed) for g in generations] == expected
    assert max(n for g in generations for n in g.committed) > 1


def test_temperature_widens_what_is_typical(folders: dict[str, str]) -> None:
    model, rates = target(stop=False), []
    for temperature in (0.3, 3.0):
        requests = [Request(p, 40, sampling=Sampling(temperature, seed=1)) for p in PROMPTS]
        decoder = Medusa(heads=folders["shared"], tree=TREE, acceptance="typical")
        rates.append(sum(g.passes for g in run(model, decoder, requests)))
    assert rates[1] < rates[0]


def test_published_heads_are_read_without_running_code(tmp_path: Path) -> None:
    heads = random_heads(own=True)
    assert heads.unembedding is not None
    tensors: dict[str, Any] = {}
    for i in range(HEADS):
        tensors |= {f"{i}.0.linear.weight": heads.weight[i, 0], f"{i}.0.linear.bias": heads.bias[i, 0]}
        tensors[f"{i}.1.weight"] = heads.unembedding[i]
    config = {"medusa_num_heads": HEADS, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    read = load_heads(str(tmp_path), target())
    assert read.unembedding is not None
    assert torch.equal(read.weight, heads.weight)
    assert torch.equal(read.bias, heads.bias)
    assert torch.equal(read.unembedding, heads.unembedding)

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (tmp_path.joinpath("harm").touch, ())

    torch.save(tensors | {"x": Harm()}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(UserError, match=r"^heads '.*' cannot be loaded: "):
        load_heads(str(tmp_path), target())
    assert not (tmp_path / "harm").exists()


def test_heads_that_share_the_unembedding_are_small(tmp_path: Path) -> None:
    save_heads(random_heads(size=576).to(torch.device("cpu"), torch.bfloat16), tmp_path, "smollm2-135m")
    assert (tmp_path / "medusa_lm_head.safetensors").stat().st_size < 2.8e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"medusa_num_heads": 5}, "config.json says 5 heads, the weights hold 4"),
        ({"medusa_num_layers": 2}, "config.json says 2 layers, but 0.1.linear.bias is missing or too much"),
        ({"medusa_num_heads": 0}, "config.json names no medusa_num_heads and medusa_num_layers of 1 or more"),
        ({"medusa_num_layers": None}, "config.json names no medusa_num_heads and medusa_num_layers of 1 or more"),
    ],
)
def test_heads_of_another_count_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    save_heads(random_heads(), tmp_path, "tiny")
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError) as caught:
        Medusa(heads=str(tmp_path)).generator(target(), 1)
    assert str(caught.value) == f"heads '{tmp_path}': {message}"


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (random_heads(size=48), "0.0.linear.weight is 48×48, tiny-llama needs 32×32"),
        (random_heads(own=True, words=12), "0.1.weight is 12×32, tiny-llama needs 10×32"),
    ],
)
def test_heads_of_another_size_are_refused(tmp_path: Path, heads: MedusaHeads, message: str) -> None:
    save_heads(heads, tmp_path, "tiny")
    with pytest.raises(UserError) as caught:
        Medusa(heads=str(tmp_path)).generator(target(), 1)
    assert str(caught.value) == f"heads '{tmp_path}' were made for another model: {message}"


def test_heads_that_are_not_there_or_damaged_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    save_heads(random_heads(), tmp_path / "torn", "tiny")
    weights = tmp_path / "torn" / "medusa_lm_head.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    save_heads(random_heads(), tmp_path / "other", "tiny")
    save_file({"lm_head.weight": torch.zeros(2)}, tmp_path / "other" / "medusa_lm_head.safetensors")
    for name, message in (
        ("./nowhere", r"^heads folder './nowhere' does not exist$"),
        (str(tmp_path / "empty"), r"^heads '.*empty' need config.json and medusa_lm_head.safetensors or "),
        (str(tmp_path / "torn"), r"^heads '.*torn' cannot be loaded: "),
        (str(tmp_path / "other"), r"^heads '.*other': config.json says 4 heads, the weights hold 1$"),
    ):
        with pytest.raises(UserError, match=message):
            load_heads(name, target())


def test_heads_are_those_of_the_card_unless_others_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^tiny-llama comes without Medusa heads: give some .* with --heads$"):
        Medusa().generator(target(), 1)
    save_heads(random_heads(seed=5), tmp_path / "medusa", "tiny")
    carded = dataclasses.replace(target(), name=str(tmp_path), card={"medusa_heads": "medusa"})
    assert torch.equal(load_heads(None, carded).weight, random_heads(seed=5).weight)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("0;1.0", "not a tree, 1.0 has no parent 1"),
        ("0;0.0;0", "0 stands there twice"),
        ("0;0.0;0.0.0;0.0.0.0;0.0.0.0.0", "0.0.0.0.0 is 5 deep, but there are 4 heads"),
        ("oak", "give a name (chain, default, wide) or paths like 0;1;0.0, of candidates counted from 0"),
        ("", "give a name (chain, default, wide) or paths like 0;1;0.0, of candidates counted from 0"),
        ("0;-1", "give a name (chain, default, wide) or paths like 0;1;0.0, of candidates counted from 0"),
        ("99;99.99", "takes up to 100 × 100 candidates, a full tree of 10100 nodes: use lower candidates, for 6000"),
    ],
)
def test_what_is_no_tree_is_refused(folders: dict[str, str], tree: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Medusa(heads=folders["shared"], tree=tree).generator(target(), 1)
    assert str(caught.value).startswith(f"--tree {tree}: {message}")


def test_without_the_package_one_line_says_what_to_install(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "medusa.model.utils", None)
    with pytest.raises(UserError, match=r"^medusa needs the package medusa-llm: pip install decodebench\[medusa\]$"):
        Medusa(heads=folders["shared"]).generator(target(), 1)


def test_a_pass_waits_for_the_device_once(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    engines = [
        Medusa(heads=folders["shared"], acceptance=acceptance).generator(target(stop=False), batch_size=3)
        for acceptance in ("greedy", "typical")
    ]
    for name in ("item", "tolist", "cpu", "__bool__", "__int__", "__index__", "nonzero"):
        original: Callable[..., object] = getattr(torch.Tensor, name)

        def spy(
            self: torch.Tensor, *args: object, name: str = name, original: Callable[..., object] = original
        ) -> object:
            waits.append(name)
            return original(self, *args)

        monkeypatch.setattr(torch.Tensor, name, spy)
    for engine in engines:
        assert isinstance(engine, Engine)
        waits.clear()
        engine.generate([Request([1 + n] * 6, 12) for n in range(3)])
        assert waits == ["cpu"] * engine.statistics.passes
        assert engine.statistics.draft_seconds > 0
