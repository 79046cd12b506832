"""`decodebench race`: one prompt, several methods, side by side."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from decodebench.cli.options import DEFAULT_MODEL, Adapter, Device, Dtype, Model
from decodebench.cli.run import split
from decodebench.errors import UserError


def race(
    *,
    knobs: Mapping[str, list[str]],
    prompt: Annotated[str, typer.Argument(help="What the model is asked.")],
    methods: Annotated[str, typer.Option(help="A comma list; see `decodebench methods`.")] = "ar,mars",
    model: Model = DEFAULT_MODEL,
    adapter: Adapter = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    replay: Annotated[str, typer.Option(help="Speed of the show: 1x is true speed, 0.5x half; 0: at once.")] = "1x",
    svg: Annotated[
        Path | None, typer.Option(help="Also save it as a picture that plays where animations run.", show_default=False)
    ] = None,
) -> None:
    """Decode one prompt with several methods and show them side by side, text coloured by pass.

    The work is done one after the other, so that nothing shares the machine,
    and shown as if all had started together. A comma list for a knob adds a
    lane for each value. One prompt says little: `decodebench run` measures.
    """
    speed = parse_speed(replay)
    from decodebench.analysis.labels import SHOWN
    from decodebench.decoding import Request, Sampling
    from decodebench.evaluation.grid import expand_grid
    from decodebench.models import load_model
    from decodebench.race import picture, results, run_lane, show
    from decodebench.race import replay as play

    cells = expand_grid(split(methods), [""], [1], knobs)
    if not cells:
        raise UserError("--methods: name at least one")
    if not prompt.strip():
        raise UserError("the prompt is empty: ask something")
    loaded = load_model(model, dtype, device, adapter)
    request = Request(_encode(loaded.tokenizer, prompt), max_new_tokens, sampling=Sampling(temperature, seed=seed))
    lanes = []
    with Console(stderr=True).status("") as status:
        for cell in cells:
            shown = (SHOWN.get(knob, knob + "={}").format(value) for knob, value in cell.knobs.items())
            name = " ".join([cell.method, *shown])
            status.update(f"{name} is running, alone")
            lanes.append(run_lane(name, cell.build(), loaded, request))
            if lanes[-1].generation.finish == "prompt_too_long":
                raise UserError(f"the prompt has {len(request.prompt)} tokens, which leaves {model} no room to answer")
    console = Console(highlight=False)
    if console.is_terminal:
        if speed:
            play(console, lanes, speed)
        console.print(show(lanes, math.inf, console.width))
    else:
        for lane in lanes:
            typer.echo(f"--- {lane.name}\n{lane.generation.text}")
        typer.echo("---")
    for line in results(lanes):
        typer.echo(line)
    if svg:
        from decodebench.analysis.output import write_output

        write_output(svg, picture(lanes, prompt).encode())
        typer.echo(svg)


def parse_speed(text: str) -> float:
    """The speed of the show: "1x" or "1" is 1.0.

    Raises:
        UserError: it is no number, or below 0.
    """
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = math.nan
    if not (speed >= 0 and math.isfinite(speed)):
        raise UserError(f"--replay {text}: give a speed such as 1x or 0.5x, or 0 to see the end at once")
    return speed


def _encode(tokenizer: Any, prompt: str) -> list[int]:
    """The prompt as a user's turn where the model knows turns, else as text to be continued."""
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(prompt))
    turn = [{"role": "user", "content": prompt}]
    return list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False))
