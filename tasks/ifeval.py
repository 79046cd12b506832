"""IFEval: what its scorer needs besides lm-eval, and the scorer with chance taken out of it."""

import importlib.util
import random
from pathlib import Path
from typing import Any

from decodebench.errors import UserError

PACKAGES = ("nltk", "langdetect", "immutabledict")


def check(data_dir: Path | None) -> None:
    """Make sure of the packages, and of NLTK's sentence tokenizer `punkt_tab`.

    Without them the scorer fails, some of it late, and on some instructions only.

    The tokenizer is looked for where NLTK looks (NLTK_DATA) and in the data folder's nltk_data, else fetched.

    Raises:
        UserError: something is missing and cannot be had.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"IFEval's scorer needs {' and '.join(missing)}: pip install 'lm-eval[ifeval]'")
    import langdetect
    import nltk

    langdetect.DetectorFactory.seed = 0  # unseeded, the same text is not always the same language
    folder = str(data_dir / "nltk_data") if data_dir else None
    if folder and folder not in nltk.data.path:
        nltk.data.path.append(folder)
    if not _has_tokenizer():
        nltk.download("punkt_tab", quiet=True)
    if not _has_tokenizer():
        raise UserError(
            "IFEval's scorer needs NLTK's punkt_tab, which cannot be fetched here: run `python -m nltk.downloader "
            "punkt_tab` where there is a network, and set NLTK_DATA to the folder that then holds tokenizers/punkt_tab"
        )


def _has_tokenizer() -> bool:
    import nltk

    try:
        nltk.data.find("tokenizers/punkt_tab/english")
    except LookupError:
        return False
    return True


def score(doc: dict[str, Any], results: list[str]) -> dict[str, Any]:
    """lm-eval's own scores, the same each time.

    Where a document asks for a letter that is none ("#" in 1122, "!" in 1129), lm-eval checks a random one instead.
    """
    from lm_eval.tasks.ifeval.utils import process_results  # here, since it downloads on import what `check` looks for

    state = random.getstate()
    random.seed(doc["key"])
    try:
        return process_results(doc, results)
    finally:
        random.setstate(state)
