"""Documents from the hub, without waiting for one that is out of reach."""

from collections.abc import Mapping
from typing import Any

import datasets

from decodebench.errors import UserError
from decodebench.hub import impatient_hub


class NoAccess(UserError):
    """The hub cannot be reached, or keeps a gated data set from this user."""

    reason = "no access"


def from_hub(path: str, name: str | None, options: Mapping[str, Any]) -> datasets.DatasetDict:
    """A data set by its name and subset; `options` are those of `datasets.load_dataset`.

    Raises:
        NoAccess: with the remedy in it.
    """
    with impatient_hub(path, "dataset") as refusal:
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
