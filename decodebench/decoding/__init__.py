"""Decoding: one engine for all methods, and the interfaces they implement."""

from decodebench.decoding.decoder import (
    Batch,
    Batching,
    Commit,
    Decoder,
    Draft,
    Generator,
    Method,
    OnCommit,
    OnFinish,
    PassOutput,
    Statistics,
)
from decodebench.decoding.knobs import Knob, knob, knobs_of
from decodebench.decoding.request import GREEDY, Finish, Generation, Progress, Request, Sampling

__all__ = [
    "GREEDY",
    "Batch",
    "Batching",
    "Commit",
    "Decoder",
    "Draft",
    "Finish",
    "Generation",
    "Generator",
    "Knob",
    "Method",
    "OnCommit",
    "OnFinish",
    "PassOutput",
    "Progress",
    "Request",
    "Sampling",
    "Statistics",
    "knob",
    "knobs_of",
]
