"""What `decodebench serve` says to those who start it wrongly."""

import socket
import sys

import pytest

from decodebench.cli.serve import serve
from decodebench.errors import UserError


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("decodebench.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setitem(sys.modules, "starlette", None)
    with pytest.raises(UserError, match=r"pip install 'decodebench\[serve\]'"):
        serve(knobs={})


def test_mistakes_are_found_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette", reason="needs decodebench[serve]")
    pytest.importorskip("prometheus_client", reason="needs decodebench[serve]")
    pytest.importorskip("uvicorn", reason="needs decodebench[serve]")
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.org"):
        with pytest.raises(UserError, match="needs --api-key"):
            serve(knobs={}, host=host)
    with pytest.raises(UserError, match="one value of each knob"):
        serve(knobs={"tau": ["0.9", "0.8"]})
    with pytest.raises(UserError, match="unknown method"):
        serve(knobs={}, method="mras")
    with pytest.raises(UserError, match="name at least one"):
        serve(knobs={}, method=",")
    with pytest.raises(UserError, match="did you mean 'queue'"):
        serve(knobs={}, policy="quene")
    with pytest.raises(UserError, match="--target-latency"):
        serve(knobs={}, policy="slo")
    with pytest.raises(UserError, match="--tau-low"):
        serve(knobs={}, policy="queue", tau_low=0.9, tau_high=0.5)
    with pytest.raises(UserError, match="none of the methods"):
        serve(knobs={}, policy="queue", method="ar")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="in use"):
        serve(knobs={}, port=taken.getsockname()[1])
