"""The samples of a run as columns, kept beside them in a file that is read a hundred times as fast."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodebench.errors import UserError, first_line
from decodebench.records import read_samples
from decodebench.records.aggregates import mean_ar_logprob, number, token_count
from decodebench.records.files import SAMPLES

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

DOCUMENT = ["task", "doc_id", "idx", "doc_hash"]  # what names a request, in any run of its task
CACHE = ".samples.feather"
VERSION = 1  # of the columns; files of another one are written again
NAMED = ["repeat", *DOCUMENT, "category", "score", "tokens", "latency", "ttft", "ar_logprob"]
COLUMNS = [*NAMED, "request", "document", "digest"]
OUTPUT = "output"


def read_columns(folder: Path, headline: str | None) -> "pd.DataFrame":
    """One row per request and repeat, with what comparisons need of it, in the order of the file.

    Columns: repeat, those of `DOCUMENT`, category (None where documents have none), score (of the headline metric, NaN
    where there is none), tokens (how many were committed), latency and ttft (seconds, NaN where there is none),
    ar_logprob (nats per token, NaN where it is not recorded), request and document (numbers that name a request and its
    document in every run of its task), digest (equal where outputs are).

    Args:
        folder: of the run.
        headline: the metric that stands for the task; None where there is no score.

    Raises:
        UserError: the samples cannot be read.
    """
    return _table(folder, headline, COLUMNS).to_pandas()


def read_outputs(folder: Path, headline: str | None) -> Any:
    """The tokens of each output of the first repeat, as an array of int32 arrays (None in other repeats).

    Rows, arguments and errors are those of `read_columns`.
    """
    return _table(folder, headline, [OUTPUT])[OUTPUT].to_numpy()


def no_columns() -> "pd.DataFrame":
    """The columns of `read_columns`, without rows."""
    return _build([], None).select(COLUMNS).to_pandas()


def _table(folder: Path, headline: str | None, columns: list[str]) -> "pa.Table":
    from pyarrow import ArrowInvalid, feather

    path, stamp = folder / CACHE, _stamp(folder, headline)
    with contextlib.suppress(OSError, ArrowInvalid, KeyError):
        table = feather.read_table(path, columns, use_threads=False, memory_map=True)
        if table.schema.metadata[b"stamp"] == stamp:
            return table
    try:
        table = _build(read_samples(folder), headline).replace_schema_metadata({b"stamp": stamp})
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"'{folder / SAMPLES}' holds what is no sample ({first_line(error)})") from error
    temporary = path.with_name(f"{CACHE}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a folder that cannot be written is read again each time
        feather.write_feather(table, temporary, compression="lz4")
        os.replace(temporary, path)
    return table.select(columns)


def _stamp(folder: Path, headline: str | None) -> bytes:
    """What changes when the samples do."""
    try:
        status = os.stat(folder / SAMPLES)
    except OSError:
        return b""
    return f"{VERSION} {status.st_size} {status.st_mtime_ns} {headline}".encode()


def _build(samples: Iterable[Mapping[str, Any]], headline: str | None) -> "pa.Table":
    import pandas as pd
    import pyarrow as pa

    rows = [_row(sample, headline) for sample in samples]
    frame = pd.DataFrame(rows, columns=[*NAMED, OUTPUT])
    whole, real = ("repeat", "doc_id", "idx", "tokens"), ("score", "latency", "ttft", "ar_logprob")
    frame = frame.astype(dict.fromkeys(whole, "int64")).astype(dict.fromkeys(real, "float64"))
    for name, columns in (("request", DOCUMENT), ("document", ["task", "doc_id"])):
        frame[name] = pd.util.hash_pandas_object(frame[columns], index=False).astype("uint64")
    frame["digest"] = [hash(output) for output in frame[OUTPUT]]
    frame.loc[frame["repeat"] > 0, OUTPUT] = None
    schema = pa.Schema.from_pandas(frame.drop(columns=OUTPUT), preserve_index=False)
    return pa.Table.from_pandas(
        frame, schema.append(pa.field(OUTPUT, pa.list_(pa.int32()))).remove_metadata(), preserve_index=False
    )


def _row(sample: Mapping[str, Any], headline: str | None) -> tuple[Any, ...]:
    return (
        sample["repeat"],
        sample["task"],
        sample["doc_id"],
        sample.get("idx", 0),
        sample.get("doc_hash") or "",
        sample.get("category"),
        number((sample.get("scores") or {}).get(headline)),
        token_count(dict(sample)),
        number(sample.get("latency")),
        number(sample.get("ttft")),
        mean_ar_logprob(dict(sample)),
        tuple(sample.get("tokens") or ()),
    )
