"""Perplexity against its definition, window by window; and rates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from serve.serving import write_model
from tiny_models import text, tiny

from gpack.cli import main
from gpack.errors import UsageError
from gpack.generate.perplexity import Window, measure, windows
from gpack.generate.rates import rates


@pytest.mark.parametrize(
    ("count", "n_ctx", "stride", "wanted"),
    [
        # The second half of each; what is left at the end is no window.
        (20, 8, 0, [Window(0, 8, 5), Window(8, 16, 13)]),
        (8, 8, 0, [Window(0, 8, 5)]),
        # As llama.cpp's perplexity_v2: windows of 8 + 4 // 2, ceil((30 - 10) / 4) of them, of each the last four.
        (30, 8, 4, [Window(at, at + 10, at + 6) for at in (0, 4, 8, 12, 16)]),
        (31, 8, 4, [Window(at, at + 10, at + 6) for at in (0, 4, 8, 12, 16, 20)]),
        (10, 8, 4, [Window(0, 10, 6)]),
    ],
)
def test_windows(count: int, n_ctx: int, stride: int, wanted: list[Window]) -> None:
    assert windows(count, n_ctx, stride) == wanted


@pytest.mark.parametrize(
    ("count", "n_ctx", "stride", "code"),
    [
        (7, 8, 0, "engine.prompt"),
        (9, 8, 4, "engine.prompt"),
        (99, 3, 0, "usage"),
        (99, 8, 8, "usage"),
        (99, 8, -1, "usage"),
    ],
)
def test_windows_that_there_are_not(count: int, n_ctx: int, stride: int, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        windows(count, n_ctx, stride)
    assert caught.value.code == code


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with tiny().open(tmp_path_factory.mktemp("perplexity") / "m.gguf") as loaded:
        yield loaded


class WithSettings:
    """A model with a tokenizer that puts a token before each text, or none."""

    def __init__(self, model: Any, *, add_bos: bool) -> None:
        self.session = model.session
        self.tokenizer = SimpleNamespace(settings=SimpleNamespace(bos_id=1, add_bos=add_bos))


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("stride", [0, 7])
def test_perplexity_is_what_its_definition_says(model: Any, stride: int, add_bos: bool) -> None:
    ids, surprises = text(100, 40, seed=5), []
    for part in windows(len(ids), 24, stride):
        seen = ids[part.start : part.end]
        if add_bos:
            seen = [1, *seen[1:]]
        logits = model.logits(seen, device="reference", compute="f32", cache_type="F32")
        for at in range(part.first - part.start, len(seen)):
            row = logits[at - 1]
            surprises.append(-math.log(np.exp(row[seen[at]]) / np.exp(row).sum()))
    told: list[int] = []
    found = measure(
        WithSettings(model, add_bos=add_bos),  # type: ignore[arg-type]
        ids,
        n_ctx=24,
        stride=stride,
        progress=lambda each: told.append(each.windows),
        compute="f32",
        cache_type="F32",
    )
    assert found.value == pytest.approx(math.exp(np.mean(surprises)), rel=1e-5)
    spread = np.std(surprises) / math.sqrt(len(surprises) - 1)
    assert found.error == pytest.approx(spread * math.exp(np.mean(surprises)), rel=1e-4)
    assert found.tokens == len(surprises)
    assert told == list(range(1, len(windows(len(ids), 24, stride)) + 1))
    some = measure(WithSettings(model, add_bos=add_bos), ids, n_ctx=24, stride=stride, most=2)  # type: ignore[arg-type]
    assert some.windows == 2
    with pytest.raises(UsageError):
        measure(WithSettings(model, add_bos=add_bos), ids, n_ctx=24, most=0)  # type: ignore[arg-type]


def test_logits_come_a_few_rows_at_a_time(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    named: Any = WithSettings(model, add_bos=True)
    ids = text(60, 40, seed=6)
    whole = measure(named, ids, n_ctx=30)
    monkeypatch.setattr("gpack.generate.perplexity._LOGIT_BYTES", 4 * 40 * 3)
    assert measure(named, ids, n_ctx=30) == whole


# ---------------------------------------------------------------- rates and commands


def test_rates_count_the_tokens_of_all_texts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", iter(range(1000)).__next__)  # each run takes a second
    found = list(rates(model, prompt=20, decode=5, texts=(1, 3), repetitions=2, threads=1))
    assert [(each.job, each.rates) for each in found] == [
        ("prompt 20", (20, 20)),
        ("decode 5", (5, 5)),
        ("decode 5, 3 texts", (15, 15)),
    ]
    assert list(rates(model, prompt=0, decode=0, texts=(1,), repetitions=1, threads=1)) == []
    for wrong in ({"prompt": -1}, {"repetitions": 0}, {"texts": (0,)}, {"texts": (100_000,)}):
        with pytest.raises(UsageError):
            list(rates(model, **{"prompt": 1, "decode": 1, "texts": (1,), "repetitions": 1, **wrong}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("commands"))


def test_the_command_bench(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(path), "-p", "8", "-n", "4", "-r", "2", "--texts", "1,2", "-t", "1"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[5] for line in lines[2:5]] == ["prompt 8", "decode 4", "decode 4, 2 texts"]
    assert {line.count("|") for line in lines[:5]} == {10}
    assert main([*words, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [len(each["rates"]) for each in results] == [2, 2, 2]
    assert results[0]["model"] == path.name
    assert main([*words[:2], "--texts", "1,x"]) == 2


def test_the_command_perplexity(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_text("Hello there. " * 40)
    words = ["perplexity", str(path), str(tmp_path / "t.txt"), "--ctx", "32"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == 15 * found["windows"]
    assert main([*words, "--windows", "1"]) == 0
    assert "(15 tokens in 1 window, " in capsys.readouterr().out
    for wrong, status in ((["--ctx", "100000"], 2), (["--windows", "0"], 2), (["--stride", "32"], 2)):
        assert main([*words, *wrong]) == status, wrong
