"""`decodebench methods` and `models`: what is there."""

from rich.console import Console
from rich.table import Table


def methods() -> None:
    """Decoding methods: whether they are lossless, what they need, and their knobs with defaults and ranges."""
    from decodebench.decoding import knobs_of
    from decodebench.decoding.registry import method, method_names

    table = Table("method", "lossless", "needs", "what it does", box=None, pad_edge=False)
    details = Table("knob", "default", "values", "", box=None, pad_edge=False)
    for narrow in (*table.columns[:2], *details.columns[:2]):
        narrow.no_wrap = True
    for name in method_names():
        cls = method(name)
        about = (cls.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, "yes" if cls.lossless else "no", cls.needs or "–", about)
        for knob in knobs_of(cls).values():
            default = "" if knob.default is None else str(knob.default)
            details.add_row(f"{name} {knob.flag}", default, knob.allowed, knob.help)
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print()
    console.print(details)


def models() -> None:
    """Built-in models."""
    from decodebench.models.adapters import SHIPPED, shipped_names
    from decodebench.models.embedded import CARD, EMBEDDED
    from decodebench.models.loading import read_card

    table = Table("model", "what it is", "licence", box=None, pad_edge=False)
    table.add_row(EMBEDDED, f"{CARD['model']}; {CARD['source']}", CARD["license"])
    for name in shipped_names():
        card = read_card(str(SHIPPED / name))
        size = card.get("block_size") or card.get("diffusion_block_size")
        how = card["recipe"]["objective"] + (f", B = {size}" if size else "")
        table.add_row(name, f"an adapter for {card['base']}, trained by `decodebench train` ({how})", CARD["license"])
    console = Console(highlight=False)
    console.print(table)
    console.print("\n--model also takes a local folder (checkpoint or PEFT adapter) or a hub id.")
