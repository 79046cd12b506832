"""The hub, without waiting for one that is out of reach."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import huggingface_hub

TIMEOUT = 5.0  # seconds to wait for a sign of life


@contextlib.contextmanager
def impatient_hub(repository: str, kind: Literal["model", "dataset"]) -> Iterator[str | None]:
    """Do not let the hub client retry for half a minute where there is no hub; what is in its cache still loads.

    Args:
        repository: one to ask for; whether it exists does not matter.
        kind: of repository.

    Yields: why the hub cannot be reached, or ``None`` where it can.
    """
    constants = huggingface_hub.constants
    before, refusal = constants.HF_HUB_OFFLINE, None
    try:
        huggingface_hub.HfApi().repo_info(repository, repo_type=kind, timeout=TIMEOUT)
    except huggingface_hub.errors.HfHubHTTPError:
        pass  # a refusal is a sign of life; whoever asks for a file learns of it
    except Exception as error:  # the client raises whatever its network library does
        refusal = " ".join(str(error).split()) or type(error).__name__
    constants.HF_HUB_OFFLINE = before or refusal is not None
    try:
        yield refusal
    finally:
        constants.HF_HUB_OFFLINE = before
