"""What several test files share: threads kept few, and the models that take seconds to load."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import save_tiny
from hypothesis import HealthCheck, settings

from decodebench.models import EMBEDDED, LoadedModel, load_model

torch.set_num_threads(1)  # the small models gain nothing from more, and tests run side by side
os.environ.setdefault("OMP_NUM_THREADS", "1")  # in the processes that they start, too
# Whoever runs the tests in the background may have them ignore Ctrl-C, and what they start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("decodebench", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("decodebench")

GSM8K = Path(__file__).parents[2] / "shared" / "data" / "gsm8k" / "test.jsonl"


@pytest.fixture(scope="session")
def embedded() -> LoadedModel:
    """The embedded model in float32, in which decoding methods can be compared exactly."""
    return load_model(EMBEDDED, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def questions(embedded: LoadedModel) -> list[list[int]]:
    """Prompts of the first GSM8K test questions, as the embedded model's chat template asks them."""
    if not GSM8K.is_file():
        pytest.skip(f"needs {GSM8K.name} of GSM8K in the data folder beside the checkout")
    rows: list[dict[str, Any]] = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()[:48]]
    return [
        embedded.tokenizer.apply_chat_template(
            [{"role": "user", "content": row["question"]}], add_generation_prompt=True, return_dict=False
        )
        for row in rows
    ]


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model that drafts for the others."""
    return str(save_tiny(tmp_path_factory.mktemp("draft"), seed=3, num_hidden_layers=1))
