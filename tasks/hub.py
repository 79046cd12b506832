"""Documents from the hub, without waiting for one that is out of reach."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import datasets
import huggingface_hub

from decodebench.errors import UserError

TIMEOUT = 5.0  # seconds to wait for a sign of life


class NoAccess(UserError):
    """The hub cannot be reached, or keeps a gated data set from this user."""

    reason = "no access"


def from_hub(path: str, name: str | None, options: Mapping[str, Any]) -> datasets.DatasetDict:
    """A data set by its name and subset; `options` are those of `datasets.load_dataset`.

    Raises:
        NoAccess: with the remedy in it.
    """
    with impatient_hub() as refusal:
        try:
            return datasets.load_dataset(path, name, **options)
        except Exception as error:  # the hub client raises whatever its network library does
            text = str(error)
            if "gated" in text.lower():
                raise NoAccess(
                    f"{path} is gated: accept its terms on its hub page, then `hf auth login` or set HF_TOKEN"
                ) from None
            reason = refusal or text.partition("\n")[0]
            raise NoAccess(f"cannot load {path} from the hub ({reason}): go online once") from None


@contextlib.contextmanager
def impatient_hub() -> Iterator[str | None]:
    """Do not let the hub client retry for half a minute where there is no hub; what is in its cache still loads.

    Yields: why the hub cannot be reached, or None where it can.
    """
    constants = huggingface_hub.constants
    before, refusal = constants.HF_HUB_OFFLINE, None
    try:
        huggingface_hub.HfApi().dataset_info("openai/gsm8k", timeout=TIMEOUT)  # any public one
    except huggingface_hub.errors.HfHubHTTPError:
        pass  # a refusal is a sign of life
    except Exception as error:
        refusal = " ".join(str(error).split()) or type(error).__name__
    constants.HF_HUB_OFFLINE = before or refusal is not None
    try:
        yield refusal
    finally:
        constants.HF_HUB_OFFLINE = before
