"""From logits to tokens: greedy or sampled, reproducible per request."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decodebench.decoding.request import Sampling

CONFIDENCE = ("probability", "entropy", "margin")
CONFIDENCE_CHUNK = 8  # predictions at a time, on a CPU


@dataclass(frozen=True)
class Choice:
    """One token per prediction.

    Attributes:
        tokens: ``[rows, n]`` int64.
        confidence: ``[rows, n]`` float32 where a metric was asked for, else ``None``.
    """

    tokens: Tensor
    confidence: Tensor | None


@dataclass
class RowSampling:
    """The sampling parameters of the rows of a batch, on the device.

    Attributes:
        temperature, top_p: ``[rows, 1]`` float32.
        top_k: ``[rows, 1]`` int64, 0 for off.
        uniform: ``[streams, rows, most new tokens]`` float64 (float32 on Metal) in [0, 1): one draw per output position
            and stream. A position that is predicted again in a later pass meets the same draws, so a request's text
            depends on its seed alone.
        most_top_k, any_top_p: known on the host, to spare the sort where nobody needs it.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    uniform: Tensor
    most_top_k: int
    any_top_p: bool

    def narrow(self, start: int, length: int) -> "RowSampling":
        """The same for ``length`` rows from ``start``."""
        rows = slice(start, start + length)
        return RowSampling(
            self.temperature[rows], self.top_p[rows], self.top_k[rows], self.uniform[:, rows],
            self.most_top_k, self.any_top_p,
        )  # fmt: skip

    def draws(self, position: Tensor, stream: int = 0) -> Tensor:
        """``[rows, n]`` uniform draws for these output positions, ``[rows, n]``."""
        uniform = self.uniform[stream]
        return uniform.gather(1, position.clamp(max=uniform.shape[1] - 1))


def uniform_draws(seed: int, n: int, stream: int = 0) -> np.ndarray:
    """``[n]`` float64 in [0, 1): the first draws of one of a seed's streams.

    Philox: seeds, and the streams of a seed, are unrelated.
    """
    return np.random.Generator(np.random.Philox(key=(stream << 64) + seed % 2**64)).random(n)


def choose(
    logits: Tensor,
    sampling: RowSampling | None,
    generated: Tensor,
    metric: str | None,
    ahead: Tensor | None = None,
) -> Choice:
    """Pick a token per prediction and say how sure the model was.

    Confidence is read from the model's own distribution, before temperature and truncation, so that a threshold means
    the same at every temperature (arXiv 2604.07023, section on decoding).

    Args:
        logits: ``[rows, n, vocab]``, any float dtype.
        sampling: of these rows; ``None`` where all of them are greedy.
        generated: ``[rows]`` tokens generated so far: prediction j is for output position ``generated + j``.
        metric: ``probability`` (of the chosen token), ``entropy`` (nats) or ``margin`` (the most probable token's
            probability minus the next one's); ``None`` asks for no confidence.
        ahead: ``[rows or 1, n]`` where predictions are not consecutive: prediction j is for output position
            ``generated + ahead[j]``.
    """
    tokens = logits.max(-1).indices  # argmax takes four times as long in bfloat16 on a CPU
    if sampling is not None:
        tokens = torch.where(sampling.temperature > 0, _sample(logits, sampling, generated, ahead), tokens)
    if metric is None:
        return Choice(tokens, None)
    # All at once, the float32 copies are so large that malloc hands them back to the system and fetches them anew in
    # every pass, which takes twice as long as what is computed with them.
    size = CONFIDENCE_CHUNK if logits.device.type == "cpu" else max(tokens.numel(), 1)
    chunks = zip(logits.flatten(0, 1).split(size), tokens.flatten().split(size), strict=True)
    return Choice(tokens, torch.cat([_confidence(part, chosen, metric) for part, chosen in chunks]).view_as(tokens))


def _confidence(logits: Tensor, tokens: Tensor, metric: str) -> Tensor:
    """``[m]`` float32, of predictions ``[m, vocab]`` and the tokens chosen there, ``[m]``."""
    probability = logits.float().softmax(-1)
    if metric == "probability":
        return probability.gather(-1, tokens[:, None])[:, 0]
    if metric == "entropy":
        return torch.special.entr(probability).sum(-1)
    top = probability.topk(2, dim=-1).values
    return top[:, 0] - top[:, 1]


def _sample(logits: Tensor, sampling: RowSampling, generated: Tensor, ahead: Tensor | None) -> Tensor:
    """One token per prediction, ``[rows, n]``, with one uniform draw per output position."""
    if ahead is None:
        ahead = torch.arange(logits.shape[1], device=logits.device)
    return invert(_truncated(logits, sampling), sampling.draws(generated[:, None] + ahead))


def distribution(logits: Tensor, sampling: RowSampling) -> Tensor:
    """The probabilities that tokens are drawn with: ``[rows, n, vocab]`` float32.

    Greedy rows have all of it on the most probable token.
    """
    greedy = torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, logits.max(-1, keepdim=True).indices, 1.0)
    return torch.where(sampling.temperature[..., None] > 0, _truncated(logits, sampling), greedy)


def invert(probability: Tensor, draw: Tensor) -> Tensor:
    """Inverse-CDF sampling: the tokens ``[rows, n]`` at which these draws fall.

    Args:
        probability: ``[rows, n, vocab]``; need not sum to 1.
        draw: ``[rows, n]`` in [0, 1).
    """
    # float64: the sum of 150,000 float32 terms is off by more than the probability of a rare token
    cumulative = probability.to(draw.dtype).cumsum(-1)
    # right=True skips tokens of probability zero
    chosen = torch.searchsorted(cumulative, draw[..., None] * cumulative[..., -1:], right=True)[..., 0]
    return chosen.clamp(max=probability.shape[-1] - 1)


def _truncated(logits: Tensor, sampling: RowSampling) -> Tensor:
    """The model's probabilities after temperature, top-k and top-p; without meaning for greedy rows."""
    scaled = logits.float() / sampling.temperature.clamp(min=1e-6)[..., None]
    if sampling.most_top_k:
        scaled = scaled.masked_fill(scaled < _kth_largest(scaled, sampling.top_k, sampling.most_top_k), -torch.inf)
    if sampling.any_top_p:
        scaled = _nucleus(scaled, sampling.top_p)
    return scaled.softmax(-1)


def _kth_largest(scaled: Tensor, top_k: Tensor, most: int) -> Tensor:
    """The smallest value that each row keeps, ``[rows, n, 1]``; −∞ for rows without top-k."""
    values = scaled.topk(min(most, scaled.shape[-1]), dim=-1).values
    index = (top_k.clamp(min=1, max=values.shape[-1]) - 1)[..., None].expand(-1, scaled.shape[1], -1)
    return values.gather(-1, index).masked_fill((top_k == 0)[..., None], -torch.inf)


def _nucleus(scaled: Tensor, top_p: Tensor) -> Tensor:
    """Drop what is outside the smallest set whose probability reaches top_p (arXiv 1904.09751)."""
    values, order = scaled.sort(dim=-1, descending=True, stable=True)  # ties fall the same way in every batch
    probability = values.softmax(-1)
    outside = probability.cumsum(-1) - probability >= top_p[..., None]
    outside[..., 0] = False  # a top_p so small that float32 makes it 0
    return scaled.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -torch.inf)


def row_sampling(rows: Sequence[Sampling], longest: int, device: torch.device, streams: int = 1) -> RowSampling | None:
    """Device tensors for the sampling of these rows; ``None`` where all are greedy.

    Args:
        longest: the most tokens that any row generates.
        streams: draws per output position.
    """
    if all(row.greedy for row in rows):
        return None
    column = lambda values, dtype: torch.tensor(values, dtype=dtype, device=device)[:, None]  # noqa: E731
    draws = np.stack([[uniform_draws(row.seed, longest, stream) for row in rows] for stream in range(streams)])
    return RowSampling(
        temperature=column([row.temperature for row in rows], torch.float32),
        top_p=column([row.top_p for row in rows], torch.float32),
        top_k=column([row.top_k for row in rows], torch.long),
        uniform=torch.from_numpy(draws).to(torch.float32 if device.type == "mps" else torch.float64).to(device),
        most_top_k=max(row.top_k for row in rows),
        any_top_p=any(row.top_p < 1 for row in rows),
    )
