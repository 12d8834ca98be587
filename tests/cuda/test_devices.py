"""Names of devices, and machines without one."""

from __future__ import annotations

import importlib.util
import logging

import pytest

from gpack import cli
from gpack.cli.devices import chosen_device
from gpack.engine.backends.cuda import nvidia
from gpack.errors import UnsupportedError, UsageError


def missing() -> None:
    raise UnsupportedError("there is no driver of NVIDIA's on this machine", code="cuda.driver")


def test_auto_falls_back_to_the_cpu_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nvidia, "devices", missing)
    with caplog.at_level(logging.WARNING):
        assert chosen_device("auto") == "cpu"
    assert caplog.messages == ["running on the CPU: there is no driver of NVIDIA's on this machine"]


def test_auto_takes_the_first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "devices", lambda: [nvidia.Found(0, "a device", (9, 0), 1 << 30)])
    assert chosen_device("auto") == "cuda:0"


def test_a_number_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "devices", lambda: [nvidia.Found(0, "a device", (9, 0), 1 << 30)])
    with pytest.raises(UsageError) as caught:
        nvidia.Nvidia(3)
    assert (caught.value.code, caught.value.hint) == ("cuda.device", "cuda:0 (a device)")


def test_a_device_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "devices", lambda: [nvidia.Found(0, "a device", (6, 1), 1 << 30)])
    with pytest.raises(UnsupportedError, match="sm_61"):
        nvidia.Nvidia(0)


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "cuda:-1", "cuda:1234", "gpu", ""])
def test_names_that_mean_nothing(name: str) -> None:
    with pytest.raises(UsageError):
        chosen_device(name)


@pytest.mark.skipif(importlib.util.find_spec("cuda") is not None, reason="cuda-bindings is installed")
def test_without_the_package_the_hint_names_the_command() -> None:
    with pytest.raises(UnsupportedError, match="cuda-bindings") as caught:
        nvidia.devices()
    assert caught.value.hint == "pip install 'guild-gpack[cuda]'"


def test_the_option_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--help"]) == 0
    assert "--device" in capsys.readouterr().out
