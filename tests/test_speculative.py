"""Speculative decoding changes the passes; greedy text stays the same, and sampled text has the same distribution."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import save_tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny import reference, run, tiny, tokens

from decodebench.decoding import Request, Sampling
from decodebench.decoding.engine import Engine
from decodebench.decoding.sampling import distribution, row_sampling
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.drafts import Proposal
from decodebench.methods.speculative import MOST, START, Speculative, check
from decodebench.models import EMBEDDED, LoadedModel

REQUESTS = st.lists(
    st.builds(
        Request,
        # of few different tokens, so that n-grams repeat
        prompt=st.lists(st.sampled_from([30, 31, 32, 33]), min_size=1, max_size=40),
        max_new_tokens=st.integers(1, 24),
    ),
    min_size=1,
    max_size=7,
)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Knobs for every source, on three layers; one of the draft models is the target itself, one a stranger."""
    own = save_tiny(tmp_path_factory.mktemp("own"), num_hidden_layers=3)
    stranger = save_tiny(tmp_path_factory.mktemp("stranger"), seed=7, hidden_size=16, num_hidden_layers=1)
    return {
        "lookup": {"draft_source": "lookup:3"},
        "early exit": {"draft_source": "early-exit:2"},
        "own": {"draft_model": str(own)},
        "stranger": {"draft_model": str(stranger)},
    }


SOURCES = ["lookup", "early exit", "own", "stranger"]


@settings(max_examples=25)
@given(
    requests=REQUESTS,
    source=st.sampled_from(SOURCES),
    k=st.sampled_from(["auto", "1", "2", "3", "7"]),
    batch_size=st.integers(1, 4),
    batching=st.sampled_from(["continuous", "static"]),
)
def test_greedy_text_is_the_autoregressive_text(
    drafts: dict[str, dict[str, Any]], requests: list[Request], source: str, k: str, batch_size: int, batching: str
) -> None:
    model = tiny("llama", num_hidden_layers=3)
    expected = tokens(run(model, AR(), requests, batch_size=7))
    decoder = Speculative(k=k, **drafts[source])
    assert tokens(run(model, decoder, requests, batch_size, batching=batching)) == expected


@pytest.fixture(scope="module")
def asked(embedded: LoadedModel, questions: list[list[int]]) -> tuple[list[Request], list[list[int]]]:
    requests = [Request(prompt, limit) for prompt, limit in zip(questions, (14, 5, 8), strict=False)]
    return requests, tokens(run(embedded, AR(), requests, batch_size=3))


@pytest.mark.parametrize(
    ("knobs", "batch_size"),
    [
        ({"draft_source": "lookup"}, 1),
        ({"draft_source": "lookup"}, 2),
        ({"draft_source": "early-exit:6", "k": "2"}, 2),
        ({"draft_model": EMBEDDED}, 2),  # itself
    ],
)
def test_real_prompts_give_the_autoregressive_text(
    embedded: LoadedModel, asked: tuple[list[Request], list[list[int]]], knobs: dict[str, Any], batch_size: int
) -> None:
    generations = run(embedded, Speculative(**knobs), asked[0], batch_size)
    assert tokens(generations) == asked[1]
    if "draft_model" in knobs:
        assert [g.committed for g in generations] == [[6, 8], [5], [6, 2]]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])  # gpt2 has a table of positions, with nothing beyond its end
@pytest.mark.parametrize("source", [*SOURCES, "short-sighted"])
def test_rows_fill_the_context_to_its_last_position(
    drafts: dict[str, dict[str, Any]], tmp_path: Path, kind: str, source: str
) -> None:
    size: dict[str, Any] = {"num_hidden_layers": 3, "max_position_embeddings": 48, "n_positions": 48, "stop": False}
    model = tiny(kind, **size)
    if source == "short-sighted":
        save_tiny(tmp_path, num_hidden_layers=1, max_position_embeddings=16)
    knobs = drafts.get(source, {"draft_model": str(tmp_path)})
    requests = [Request([30 + n] * n, 500) for n in (1, 20, 47)]
    generations = run(model, Speculative(k="4", **knobs), requests, batch_size=3)
    assert [len(g.tokens) for g in generations] == [47, 28, 1]
    assert tokens(generations) == tokens(run(model, AR(), requests, batch_size=3))


def committed(model: LoadedModel, request: Request, **knobs: Any) -> list[int]:
    return run(model, Speculative(**knobs), [request])[0].committed


def test_a_right_draft_saves_the_passes_it_should(drafts: dict[str, dict[str, Any]]) -> None:
    model = tiny("llama", stop=False, num_hidden_layers=3)
    assert committed(model, Request([5, 6, 7], 21), k="4", **drafts["own"]) == [5, 5, 5, 5, 1]


def test_k_grows_by_two_where_all_is_accepted(drafts: dict[str, dict[str, Any]]) -> None:
    model = tiny("llama", stop=False, num_hidden_layers=3)
    expected = [k + 1 for k in [*range(START, MOST, 2), MOST, MOST]]
    assert committed(model, Request([5, 6, 7], sum(expected)), **drafts["own"]) == expected


def test_k_shrinks_to_one_where_nothing_is(drafts: dict[str, dict[str, Any]]) -> None:
    model, fed = tiny("llama", stop=False, num_hidden_layers=3, seed=1), []
    engine = Speculative(**drafts["stranger"]).generator(model, batch_size=1)
    hook = model.model.get_input_embeddings().register_forward_pre_hook(lambda _, i: fed.append(i[0].shape[1]))
    (generation,) = engine.generate([Request([5, 6, 7], 9)])
    hook.remove()
    assert generation.committed == [1] * 9
    assert fed == [3 + START, *range(START, 1, -1), 2, 2, 2, 2]  # prompt or last token, and the draft


def test_a_lookup_that_finds_nothing_costs_nothing() -> None:
    model, fed = tiny("llama", stop=False), []
    engine = Speculative(draft_source="lookup", k="4").generator(model, batch_size=2)
    hook = model.model.get_input_embeddings().register_forward_pre_hook(lambda _, i: fed.append(i[0].shape[1]))
    (generation,) = engine.generate([Request([40, 41, 42], 12)])
    hook.remove()
    text = [40, 41, 42, *generation.tokens]
    ends = [3, *(3 + n for n in itertools.accumulate(generation.committed[:-1]))]
    assert fed == [3] + [5 if text[end - 1] in text[: end - 1] else 1 for end in ends[1:]]
    assert {1, 5} <= set(fed)


def sampled(seed: int) -> list[Request]:
    kinds = [
        Sampling(1.0, seed=seed), Sampling(), Sampling(0.7, top_p=0.8, seed=seed + 1), Sampling(1.3, top_k=5, seed=5),
        Sampling(0.9, top_p=0.9, top_k=20, seed=seed), Sampling(1.0, seed=seed + 9),
    ]  # fmt: skip
    return [Request([30 + n % 2] * (1 + 4 * n), 20 - 2 * n, sampling=kind) for n, kind in enumerate(kinds)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("k", ["auto", "3"])
def test_a_seed_gives_the_same_text_in_every_batch(drafts: dict[str, dict[str, Any]], source: str, k: str) -> None:
    model = tiny("llama", num_hidden_layers=3, logit_scale=2.0)
    decoder = Speculative(k=k, **drafts[source])
    alone = tokens(run(model, decoder, sampled(3), batch_size=1))
    assert tokens(run(model, decoder, sampled(3), batch_size=2)) == alone
    assert tokens(run(model, decoder, sampled(3)[::-1], batch_size=4))[::-1] == alone
    assert alone[1] == reference(model, sampled(3)[1])  # the greedy row among the sampled


def fits(observed: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], draws: int) -> None:
    """Raise unless the counts could come from these probabilities; rare outcomes are counted together."""
    assert set(observed) <= {outcome for outcome, p in expected.items() if p > 0}
    common = [outcome for outcome, p in expected.items() if p * draws >= 5]
    seen = [observed[outcome] for outcome in common]
    wanted = [expected[outcome] * draws for outcome in common]
    seen.append(draws - sum(seen))
    wanted.append(draws - sum(wanted))
    if wanted[-1] < 5:  # too few to stand alone
        seen[-2:], wanted[-2:] = [sum(seen[-2:])], [sum(wanted[-2:])]
    assert chisquare(seen, wanted).pvalue > 1e-4


@pytest.mark.parametrize("certain", [False, True], ids=["drawn draft", "copied draft"])
@pytest.mark.parametrize(
    "kind", [Sampling(1.0), Sampling(0.6), Sampling(1.0, top_k=3), Sampling(1.2, top_p=0.7)], ids=str
)
def test_the_rule_keeps_the_targets_distribution(certain: bool, kind: Sampling) -> None:
    """Two draft tokens and the one after them, on six words, 20,000 rows with seeds of their own."""
    draws, words, k = 20_000, 6, 2
    generator = torch.Generator().manual_seed(1)
    # logits of the first position, and of every later one given the token before it
    target = [torch.randn(words, generator=generator) * 1.5, torch.randn(words, words, generator=generator) * 1.5]
    draft = [torch.randn(words, generator=generator), torch.randn(words, words, generator=generator)]
    rows = row_sampling(
        [Sampling(kind.temperature, kind.top_p, kind.top_k, seed) for seed in range(draws)],
        k + 1,
        torch.device("cpu"),
        Speculative.random_streams,
    )
    assert rows is not None
    start = torch.zeros(draws, dtype=torch.long)
    if certain:
        first_guess = target[0].argmax()
        guesses = torch.stack([first_guess, target[1][first_guess].argmax()]).expand(draws, -1)
        proposal = Proposal(guesses)
    else:
        first = distribution(draft[0].expand(draws, 1, -1), rows)
        one = torch.multinomial(first[:, 0], 1, generator=generator)
        second = distribution(draft[1][one], rows)
        guesses = torch.cat([one, torch.multinomial(second[:, 0], 1, generator=generator)], 1)
        proposal = Proposal(guesses, probability=torch.cat([first, second], 1))
    logits = torch.cat([target[0].expand(draws, 1, -1), target[1][guesses]], 1)
    out, kept = check(proposal, logits, rows, start, torch.full((draws,), k))
    assert kept.bincount(minlength=k + 1).min() > 100

    one_row = row_sampling([kind], 1, torch.device("cpu"))
    assert one_row is not None
    p_first = distribution(target[0][None, None], one_row)[0, 0].double()
    p_next = distribution(target[1][None], one_row)[0].double()
    p_first, p_next = p_first / p_first.sum(), p_next / p_next.sum(-1, keepdim=True)
    fits(Counter((t,) for t in out[:, 0].tolist()), {(i,): float(p_first[i]) for i in range(words)}, draws)
    for reached in (1, 2):  # what is written after an accepted draft depends on the token before it
        for token in range(words):
            some = out[(kept >= reached) & (out[:, reached - 1] == token), reached]
            if len(some) > 300:
                fits(
                    Counter((t,) for t in some.tolist()),
                    {(i,): float(p_next[token, i]) for i in range(words)},
                    len(some),
                )


@pytest.mark.parametrize("source", ["lookup", "early exit", "stranger"])
def test_sampled_texts_have_the_models_distribution(drafts: dict[str, dict[str, Any]], source: str) -> None:
    """The first two tokens of 2000 requests with seeds of their own, all of them through the engine."""
    model, draws = tiny("llama", num_hidden_layers=3, stop=False, logit_scale=2.0), 2000
    prompt, kind = [30, 31, 30, 31, 30], {"temperature": 0.8, "top_k": 3}
    requests = [Request(prompt, 2, sampling=Sampling(seed=seed, **kind)) for seed in range(draws)]  # type: ignore[arg-type]
    texts = Counter(map(tuple, tokens(run(model, Speculative(k="3", **drafts[source]), requests, batch_size=500))))
    one = row_sampling([Sampling(**kind)], 1, torch.device("cpu"))  # type: ignore[arg-type]
    assert one is not None
    expected: dict[tuple[int, ...], float] = {}
    first = distribution(model.model(torch.tensor([prompt])).logits[:, -1:], one)[0, 0].double()
    for i in first.nonzero()[:, 0].tolist():
        second = distribution(model.model(torch.tensor([[*prompt, i]])).logits[:, -1:], one)[0, 0].double()
        expected |= {(i, j): float(first[i] * second[j]) for j in second.nonzero()[:, 0].tolist()}
    whole = sum(expected.values())
    fits(texts, {outcome: p / whole for outcome, p in expected.items()}, draws)


def test_a_pass_waits_for_the_device_once(drafts: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    for name in ("item", "tolist", "cpu", "__bool__", "__int__", "__index__", "nonzero"):
        original: Callable[..., object] = getattr(torch.Tensor, name)

        def spy(
            self: torch.Tensor, *args: object, name: str = name, original: Callable[..., object] = original
        ) -> object:
            waits.append(name)
            return original(self, *args)

        monkeypatch.setattr(torch.Tensor, name, spy)
    model = tiny("llama", stop=False, num_hidden_layers=3)
    for source, kind in itertools.product(SOURCES, (Sampling(), Sampling(0.8, top_p=0.9))):
        engine = Speculative(**drafts[source]).generator(model, batch_size=3)
        assert isinstance(engine, Engine)
        waits.clear()
        engine.generate([Request([5 + n] * 6, 12, sampling=kind) for n in range(3)])
        assert waits == ["cpu"] * engine.statistics.passes


def test_the_default_is_lookup_with_an_adaptive_k() -> None:
    decoder = Speculative()
    assert (decoder.draft_source, decoder.k) == ("lookup:3", "auto")


def test_a_threshold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^tau 0.9: Speculative has no confidence threshold$"):
        Speculative().generator(tiny(), 1).generate([Request([5], 4, tau=0.9)])
