"""Small random models that behave like large ones: context matters, and confidences spread over (0, 1)."""

import json
from functools import lru_cache
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from decodebench.decoding import Batch, Commit, Decoder, Draft, Generation, PassOutput, Request
from decodebench.decoding.engine import Engine
from decodebench.models import LoadedModel

TEXT = "Ann has 3 apples and buys 4 more: 3 + 4 = 7. So the answer is 7! Δ → naïve café, 你好, 🙂 and more. " * 4
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


@lru_cache
def tokenizer() -> Any:
    """Byte-level BPE of about 300 tokens, special ones included; every text can be encoded."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<eos>", "<mask>", "<turn>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<eos>", mask_token="<mask>", additional_special_tokens=["<turn>"]
    )


def tiny(
    kind: str = "qwen2", seed: int = 0, *, logit_scale: float = 1.0, stop: bool = True, **config: Any
) -> LoadedModel:
    """A random float32 model of an architecture of transformers, with the tiny tokenizer.

    Args:
        logit_scale: of the unembedding; larger is surer.
        stop: whether ``<eos>`` ends an answer.
        config: changes to the architecture's configuration.
    """
    words = tokenizer()
    settings = SIZES | {"vocab_size": len(words)} | config
    model = _model(kind, seed, logit_scale, json.dumps(settings, sort_keys=True))
    return LoadedModel(f"tiny-{kind}", model, words, frozenset({words.eos_token_id}) if stop else frozenset())


@lru_cache(maxsize=16)
def _model(kind: str, seed: int, logit_scale: float, settings: str) -> Any:
    torch.manual_seed(seed)
    known = transformers.AutoConfig.for_model(kind)
    config = transformers.AutoConfig.for_model(
        kind, **{k: v for k, v in json.loads(settings).items() if hasattr(known, k)}
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.get_output_embeddings().weight.data.mul_(logit_scale)
    model.generation_config.eos_token_id = None
    return model.eval().requires_grad_(False)


def run(
    model: LoadedModel, decoder: Decoder, requests: list[Request], batch_size: int = 4, **engine: Any
) -> list[Generation]:
    """Decode these requests in a fresh engine."""
    generator = decoder.generator(model, batch_size, **engine)
    assert isinstance(generator, Engine)
    return generator.generate(requests)


def tokens(generations: list[Generation]) -> list[list[int]]:
    return [generation.tokens for generation in generations]


@torch.inference_mode()
def reference(model: LoadedModel, request: Request) -> list[int]:
    """What ``model.generate`` makes of one request, greedily and by itself."""
    out = model.model.generate(
        torch.tensor([list(request.prompt)], device=model.device),
        attention_mask=torch.ones(1, len(request.prompt), dtype=torch.long, device=model.device),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(model.stop_tokens) or None,
        pad_token_id=0,
    )
    return out[0, len(request.prompt) :].tolist()


class Recording(Decoder):
    """Mixed in before a decoder: notes the text and the draft of every row in every pass."""

    def bind(self, model: LoadedModel) -> None:
        super().bind(model)
        self.seen: list[tuple[list[int], list[int]]] = []

    def accept(self, batch: Batch, draft: Draft | None, out: PassOutput) -> Commit:
        if draft is not None:
            for row, total, guesses in zip(batch.tokens, batch.host_total, draft.tokens.tolist(), strict=True):
                self.seen.append((row[:total].tolist(), guesses))
        return super().accept(batch, draft, out)
