"""`decodebench methods` and `models`: what is there."""

from rich.console import Console
from rich.table import Table


def methods() -> None:
    """Decoding methods, with their knobs."""
    from decodebench.decoding import knobs_of
    from decodebench.decoding.registry import method, method_names

    table = Table("method", "lossless", "what it does", box=None, pad_edge=False)
    details = Table("knob", "default", "", box=None, pad_edge=False)
    for name in method_names():
        cls = method(name)
        table.add_row(name, "yes" if cls.lossless else "no", (cls.__doc__ or "").strip().splitlines()[0])
        for knob in knobs_of(cls).values():
            values = f" ({', '.join(knob.choices)})" if knob.choices else ""
            default = "" if knob.default is None else str(knob.default)
            details.add_row(f"{name} {knob.flag}", default, knob.help + values)
    console = Console()
    console.print(table)
    console.print()
    console.print(details)


def models() -> None:
    """Built-in models."""
    from decodebench.models.embedded import CARD, EMBEDDED

    table = Table("model", "what it is", "licence", box=None, pad_edge=False)
    table.add_row(EMBEDDED, f"{CARD['model']}; {CARD['source']}", CARD["license"])
    console = Console()
    console.print(table)
    console.print("\n--model also takes a local folder (checkpoint or PEFT adapter) or a hub id.")
