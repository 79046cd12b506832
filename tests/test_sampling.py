"""Sampling draws from the distribution it should, and a request's text depends on its seed and on nothing else."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny import run, tiny, tokens
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from decodebench.decoding import Request, Sampling
from decodebench.decoding.sampling import choose, row_sampling, uniform_draws
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS

CPU = torch.device("cpu")


def warped(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution that transformers would sample from."""
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return scores.softmax(-1)


@settings(max_examples=100)
@given(
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    top_p=st.sampled_from([0.3, 0.8, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 10, 50]),
    seed=st.integers(0, 9),
)
def test_tokens_follow_the_distribution_that_transformers_samples_from(
    temperature: float, top_p: float, top_k: int, seed: int
) -> None:
    draws, words = 4000, 23
    sampling = Sampling(temperature, top_p, top_k, seed)
    logits = torch.randn(1, 1, words, generator=torch.Generator().manual_seed(seed)) * 2
    rows = row_sampling([sampling], draws, CPU)
    drawn = choose(logits.expand(1, draws, words), rows, torch.zeros(1, dtype=torch.long), None).tokens[0]
    expected = warped(logits[0], sampling)[0].double()
    counted = torch.bincount(drawn, minlength=words)
    assert not counted[expected == 0].any()
    common = expected * draws >= 5  # what is rarer is counted together, as the test's approximation wants
    observed = [*counted[common].tolist(), counted[~common].sum().item()]
    wanted = [*(expected[common] * draws).tolist(), (expected[~common] * draws).sum().item()]
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    if len(wanted) > 1:
        scale = draws / sum(wanted)
        assert chisquare(observed, [value * scale for value in wanted]).pvalue > 1e-5


def mixed(seed: int) -> list[Request]:
    kinds = [
        Sampling(1.0, seed=seed),
        Sampling(),
        Sampling(0.7, top_p=0.8, seed=seed + 1),
        Sampling(1.3, top_k=5, seed=seed),
        Sampling(0.9, top_p=0.9, top_k=20, seed=seed),
        Sampling(1.0, seed=seed + 9),
        Sampling(),
    ]
    return [Request([30 + n] * (1 + 4 * n), 20 - 2 * n, sampling=kind) for n, kind in enumerate(kinds)]


@pytest.mark.parametrize("decoder", [AR(), MARS(tau=0.2), MARS(tau=0.2, cache="none")], ids=["ar", "mars", "no cache"])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_gives_the_same_text_in_every_batch(decoder: AR | MARS, seed: int) -> None:
    model = tiny("llama", logit_scale=3.0)
    alone = tokens(run(model, decoder, mixed(seed), batch_size=1))
    assert tokens(run(model, decoder, mixed(seed), batch_size=3)) == alone
    assert tokens(run(model, decoder, mixed(seed), batch_size=7, batching="static")) == alone
    backwards = run(model, decoder, mixed(seed)[::-1], batch_size=3)
    assert tokens(backwards)[::-1] == alone


def test_another_seed_gives_another_text() -> None:
    requests = [Request([30] * 5, 20, sampling=Sampling(1.0, seed=seed)) for seed in range(8)]
    texts = tokens(run(tiny(stop=False), AR(), requests, batch_size=4))
    assert len({tuple(text) for text in texts}) == 8


def test_greedy_rows_are_greedy_beside_sampled_ones() -> None:
    model = tiny("llama")
    greedy = [dataclasses.replace(r, sampling=Sampling()) for r in mixed(3)]
    expected = tokens(run(model, AR(), greedy, batch_size=1))
    among = tokens(run(model, AR(), mixed(3), batch_size=7))
    assert [among[1], among[6]] == [expected[1], expected[6]]
    assert among[0] != expected[0]


def test_temperature_zero_and_a_single_candidate_are_greedy() -> None:
    model = tiny("llama")
    requests = [
        Request([30] * 5, 12, sampling=kind) for kind in (Sampling(), Sampling(1.0, top_k=1), Sampling(0.0, 0.5, 9))
    ]
    first, second, third = tokens(run(model, AR(), requests, batch_size=3))
    assert first == second == third


def test_confidence_is_the_models_own_whatever_the_temperature() -> None:
    logits = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0)) * 3
    probability = logits.softmax(-1)
    rows = row_sampling([Sampling(2.0, 0.9, 7, seed) for seed in range(3)], 9, CPU)
    start = torch.tensor([0, 2, 5])
    chosen = choose(logits, rows, start, "probability")
    assert chosen.confidence is not None
    torch.testing.assert_close(chosen.confidence, probability.gather(-1, chosen.tokens[..., None])[..., 0])
    entropy = choose(logits, rows, start, "entropy").confidence
    torch.testing.assert_close(entropy, -(probability * probability.log()).sum(-1))
    top = probability.topk(2).values
    torch.testing.assert_close(choose(logits, rows, start, "margin").confidence, top[..., 0] - top[..., 1])


def test_a_position_predicted_again_meets_the_same_draw() -> None:
    logits = torch.zeros(1, 6, 40)
    rows = row_sampling([Sampling(1.0, seed=5)], 6, CPU)
    whole = choose(logits, rows, torch.tensor([0]), None).tokens[0]
    later = choose(logits[:, :4], rows, torch.tensor([2]), None).tokens[0]
    assert later.tolist() == whole[2:].tolist()
    assert uniform_draws(5, 3).tolist() == uniform_draws(5, 6)[:3].tolist()


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"temperature": float("nan")}]
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} "):
        Sampling(**wrong)  # type: ignore[arg-type]
