"""Medusa (arXiv 2401.10774): heads on the last hidden state draft a tree, and one pass checks all of its branches."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodebench.decoding import Batch, Commit, Decoder, Draft, PassOutput, knob
from decodebench.errors import UserError
from decodebench.methods.drafts import tree as trees
from decodebench.models import LoadedModel
from decodebench.models.medusa_heads import MedusaHeads, load_heads

TYPICAL = ("acceptance", "typical")
ACCEPTANCE = ("greedy", "typical")


@dataclass
class Medusa(Decoder):
    """Heads trained on the model's last hidden state draft a tree of candidates; one pass checks all branches.

    After every pass head i reads the hidden state that gave the last committed token, and proposes candidates for the
    position i + 1 further on. They are arranged in a tree, a slot per node, that attends along its branches only
    (arXiv 2401.10774, section 2.1.2). Of the branches that are accepted the longest is kept.

    Acceptance: ``greedy`` keeps what the model itself would have chosen there. Sampled rows choose by the draw of
    their seed at each position, so that their text, too, is the autoregressive one. ``typical`` keeps a candidate
    whose probability is above min(ε, δ·exp(−H)), H being the entropy of the model's prediction at the row's
    temperature (1 for greedy rows; section 2.3.1); it is faster, and the text is another one.

    Of the package ``medusa-llm`` (0.1), by the paper's authors, ``medusa.model.utils.generate_medusa_buffers`` is used
    for the buffers of tree attention. More of it cannot be: ``generate_candidates`` and ``evaluate_posterior`` take one
    row at a time and give numbers to the host, and ``medusa.model.medusa_model`` brings its own copy of Llama, which
    cannot be built from a configuration of transformers 5. The package knows only full trees; others are cut out of
    them.
    """

    lossless = True
    needs = "heads trained for the model; the package medusa-llm"

    heads: str | None = knob(None, "folder or hub id of Medusa heads; default: what the model's card names")
    tree: str = knob("default", f"{', '.join(trees.NAMED)}, or paths of candidates: 0;1;0.0;0.1")
    acceptance: str = knob("greedy", "what is kept: the model's own choice, or whatever is typical", choices=ACCEPTANCE)
    epsilon: float = knob(
        0.09, "ε, for --acceptance typical: a candidate this probable is always kept", low=0, high=1, only=TYPICAL
    )
    delta: float = knob(
        0.3, "δ, for --acceptance typical: scales the threshold by entropy", low=0, high=1, only=TYPICAL
    )

    network: MedusaHeads = field(init=False, repr=False)
    unembed: torch.nn.Module = field(init=False, repr=False)
    nodes: trees.Tree = field(init=False, repr=False)
    ahead: Tensor = field(init=False, repr=False)

    def bind(self, model: LoadedModel) -> None:
        network = load_heads(self.heads, model)
        self.nodes = trees.moved(build_tree(self.tree, network.count), model.device)
        self.network = network.first(len(self.nodes.widths))
        self.unembed = model.model.get_output_embeddings()
        self.ahead = torch.cat([self.nodes.depth.new_zeros(1), self.nodes.depth + 1])[None]
        self.max_draft = len(self.nodes.depth)
        self.state_size = sum(self.nodes.widths)

    def draft(self, batch: Batch) -> Draft | None:
        if batch.fresh:  # there is no hidden state before the first pass
            return None
        return Draft(batch.state[:, self.nodes.candidate], self.nodes.mask[None], self.nodes.depth[None])

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        if draft is None:
            tokens = batch.choose(out.logits).tokens
            return Commit(tokens, torch.ones_like(batch.total), state=self._candidates(batch, out.hidden[:, 0]))
        chosen = batch.choose(out.logits, ahead=self.ahead).tokens
        if self.acceptance == "greedy":
            right = draft.tokens == chosen[:, self.nodes.parent]
            likelihood = torch.zeros_like(right, dtype=torch.float32)
        else:
            right, likelihood = self._typical(batch, draft, out.logits)
        reached = (right[:, None] | ~self.nodes.mask).all(-1)
        kept = (reached * (self.nodes.depth + 1)).amax(1)
        longest = reached & (self.nodes.depth + 1 == kept[:, None])
        best = likelihood.masked_fill(~longest, -torch.inf).argmax(1)
        end = torch.where(kept > 0, best + 1, 0)  # the prediction that follows the kept branch
        path, last = self.nodes.path[best], chosen.gather(1, end[:, None])
        tokens = torch.cat([draft.tokens.gather(1, path), last], 1).scatter(1, kept[:, None], last)
        hidden = out.hidden[torch.arange(batch.rows, device=end.device), end]
        return Commit(tokens, kept + 1, kept, path, state=self._candidates(batch, hidden))

    def _typical(self, batch: Batch, draft: Draft, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Which slots are typical of what the model predicts there, and the log-likelihood of the way to each."""
        scaled = logits.float()
        if batch.sampling is not None:
            temperature = batch.sampling.temperature
            scaled = scaled / torch.where(temperature > 0, temperature, 1.0)[..., None]
        log = scaled.log_softmax(-1)
        entropy = torch.special.entr(log.exp()).sum(-1)
        threshold = (self.delta * (-entropy).exp()).clamp(max=self.epsilon)[:, self.nodes.parent]
        row = torch.arange(batch.rows, device=logits.device)[:, None]
        likelihood = log[row, self.nodes.parent, draft.tokens].clamp(min=-1e9)  # −∞ · 0 would be no number
        return likelihood.exp() > threshold, likelihood @ self.nodes.mask.T.float()

    def _candidates(self, batch: Batch, hidden: Tensor) -> Tensor:
        """``[rows, state_size]`` the most probable tokens of each head, the first head's first."""
        widths = self.nodes.widths
        with batch.drafting():
            logits = self.network.logits(hidden, self.unembed)
            return torch.cat([logits[:, head].topk(width).indices for head, width in enumerate(widths)], 1)


def build_tree(text: str, heads: int) -> trees.Tree:
    """The tree that ``--tree`` names, for so many heads.

    Raises:
        UserError: for what is no tree, or when ``medusa-llm`` is not installed.
    """
    paths = trees.parse(text, heads)
    widths = trees.spanned(text, paths)
    try:
        from medusa.model.utils import generate_medusa_buffers
    except ImportError as error:
        raise UserError("medusa needs the package medusa-llm: pip install decodebench[medusa]") from error
    return trees.build(paths, generate_medusa_buffers([1, *widths], device="cpu"), widths)
