"""`decodebench serve`: an HTTP face that OpenAI's clients understand."""

from collections.abc import Mapping
from typing import Annotated

import typer

from decodebench.cli.load import TargetLatency, TargetPerToken, TauHigh, TauLow, check_policy, check_positive
from decodebench.cli.options import DEFAULT_MODEL, Adapter, Device, Dtype, Model
from decodebench.cli.run import split
from decodebench.errors import UserError


def serve(
    *,
    knobs: Mapping[str, list[str]],
    method: Annotated[
        str, typer.Option(help="Methods that requests may choose from, a comma list; the first is the default.")
    ] = "mars",
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs --api-key.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="DECODEBENCH_API_KEY", help="That clients must bring.", show_default=False),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="What chooses τ for requests that bring none: fixed, queue, slo, or a plug-in's.")
    ] = "fixed",
    tau_low: TauLow = 0.6,
    tau_high: TauHigh = 1.0,
    target_latency: TargetLatency = None,
    target_per_token: TargetPerToken = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Most requests of a method that run at a time.")] = 16,
    max_queue: Annotated[int, typer.Option(min=0, help="Most that wait for a row; others get a 429.")] = 64,
    max_length: Annotated[int, typer.Option(min=2, help="Most tokens of a request, prompt included.")] = 4096,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens, where a request does not say.")] = 256,
    max_body: Annotated[int, typer.Option(min=1, help="Most bytes of a request.")] = 1_000_000,
    max_connections: Annotated[int, typer.Option(min=1, help="Most connections; others get a 503.")] = 256,
    drain_seconds: Annotated[
        int, typer.Option(min=1, help="That running requests get after SIGTERM; the rest is cut off.")
    ] = 60,
) -> None:
    """Serve a model over HTTP as OpenAI does, with tau and method as extra fields.

    /v1/chat/completions, /v1/completions (both with streaming), /v1/models,
    /metrics for Prometheus, /healthz. Several methods share the weights and
    take turns. Answers are greedy unless a request sets a temperature. With a
    policy, τ falls as the server gets busy; a request's own tau stays as it is.
    """
    try:
        from decodebench.serve.app import is_local
        from decodebench.serve.run import Server, bind, run_server
        from decodebench.serve.service import Limits, Service
    except ModuleNotFoundError as error:
        raise UserError(f"decodebench serve needs {error.name}: pip install 'decodebench[serve]'") from None
    from decodebench.evaluation.grid import expand_grid
    from decodebench.load.policies import Settings, Target, server_policies
    from decodebench.models import load_model

    if not is_local(host) and not api_key:
        raise UserError(f"--host {host}: others can reach this, so it needs --api-key (or DECODEBENCH_API_KEY)")
    cells = expand_grid(split(method), [""], [max_rows], knobs)
    names = [cell.method for cell in cells]
    if not cells:
        raise UserError("--method: name at least one")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"method {twice} can be served with one value of each knob; requests may bring a tau")
    check_positive(target_latency=target_latency, target_per_token=target_per_token)
    check_policy(policy, tau_low, tau_high, target_latency, target_per_token)
    built = {cell.method: cell.build() for cell in cells}
    settings = Settings(tau_low, tau_high, Target(target_latency, target_per_token), max_rows)
    policies = server_policies(policy, settings, built)
    bound = bind(host, port)
    loaded = load_model(model, dtype, device, adapter)
    limits = Limits(max_rows, max_queue, max_length, max_new_tokens, max_body)
    service = Service(loaded, built, limits, policies, policy)
    run_server(Server(service, api_key or None, drain_seconds, max_connections), bound)
