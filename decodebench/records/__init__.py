"""What a run leaves behind: `run.json` and `samples.jsonl` in a folder of its own, safe against being killed.

This package is plain Python (no torch, no pandas), so that everything may import it.
"""

from decodebench.records.aggregates import aggregate
from decodebench.records.files import SCHEMA, prepare_results, read_run, read_samples
from decodebench.records.identity import identity, run_name
from decodebench.records.store import RunStore

__all__ = ["SCHEMA", "RunStore", "aggregate", "identity", "prepare_results", "read_run", "read_samples", "run_name"]
