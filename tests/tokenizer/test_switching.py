"""When compiled code takes over: the costs add up, what is on disk counts, and the ids are the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tokenizer.vocabularies import tiny

from gpack.tokenizer import bpe, switching
from gpack.tokenizer.switching import COMPILING, LOADING, LOADING_BESIDE_NUMBA, LONG_PIECE, WHEN_LOADED, Switch, cost


@pytest.fixture
def no_numba_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numba", raising=False)


def switch(monkeypatch: pytest.MonkeyPatch, *, on_disk: bool) -> Switch:
    made = Switch("kernels")
    monkeypatch.setattr(made, "_on_disk", lambda: on_disk)
    return made


@pytest.mark.usefixtures("no_numba_yet")
@pytest.mark.parametrize(("on_disk", "price"), [(True, LOADING), (False, COMPILING)])
def test_costs_add_up(monkeypatch: pytest.MonkeyPatch, on_disk: bool, price: int) -> None:
    made = switch(monkeypatch, on_disk=on_disk)
    assert not made.pays(price - 1)
    assert made.pays(price)
    made.spent += price - 10
    assert not made.pays(9)
    assert made.pays(10)


def test_loading_costs_less_where_numba_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", sys)
    assert switch(monkeypatch, on_disk=True).price() == LOADING_BESIDE_NUMBA
    assert switch(monkeypatch, on_disk=False).price() == COMPILING


def test_once_loaded() -> None:
    made = Switch("kernels")
    made.loaded = True
    assert made.pays(WHEN_LOADED)
    assert not made.pays(WHEN_LOADED - 1)


def test_without_numba() -> None:
    made = Switch("kernels")
    made.possible = False
    assert not made.pays(1 << 40)


def test_long_pieces_cost_more() -> None:
    assert cost("ab", ["a", "b"]) == 2
    assert cost("a" * LONG_PIECE + "b", ["a" * LONG_PIECE, "b"]) == 4 * LONG_PIECE + 1


def test_machine_code_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of another function, another Python, or an older source, it does not count."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    source = tmp_path / "tokenizer" / "nothing.py"
    source.parent.mkdir()
    source.write_text("")
    monkeypatch.setattr(switching, "__file__", str(source))
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}"
    kept = tmp_path / "tokenizer_0123"
    kept.mkdir()
    mark = switching.fingerprint("nothing")
    assert Switch("nothing").price() == COMPILING
    for name in (
        f"nothing.other_{mark}-1.{tag}",
        f"nothing.encode_{mark}-1.py27",
        f"some_nothing.encode_{mark}-1.{tag}",
    ):
        (kept / f"{name}.nbi").write_text("")
    assert Switch("nothing").price() == COMPILING
    (kept / f"nothing.encode_{mark}-1.{tag}.nbi").write_text("")
    assert Switch("nothing").price() in (LOADING, LOADING_BESIDE_NUMBA)
    source.write_text("# edited")
    assert Switch("nothing").price() == COMPILING
    assert Switch("missing").price() == COMPILING


def test_numba_keeps_machine_code_under_the_name_that_is_looked_for() -> None:
    """Whichever version of numba it is."""
    pytest.importorskip("numba", reason="compiled code needs numba")
    from gpack.tokenizer import kernels, spm_kernels

    for module, sources in ((kernels, ("kernels", "jitting", "split")), (spm_kernels, ("spm_kernels", "jitting"))):
        cache = getattr(module.encode._cache, "_cache_file", None)
        if cache is not None:
            mark = switching.fingerprint(*sources)
            assert cache._index_name.startswith(f"{module.__name__.rpartition('.')[2]}.encode_{mark}-")


def test_the_same_ids_before_and_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="compiled code needs numba")
    made = switch(monkeypatch, on_disk=True)
    monkeypatch.setattr(bpe, "BYTE_PAIRS", made)
    tokenizer = tiny(tmp_path)
    text = "the theatre, there 2024 🙂 " * 1000
    ids, switched = tokenizer.encode_plain(text), []
    for _ in range(24):
        assert tokenizer.encode(text) == ids
        switched.append(made.loaded)
    assert not switched[0]
    assert switched[-1]
    assert switched == sorted(switched)
    assert made.spent < LOADING


def test_damage_that_a_text_does_not_meet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiled code checks all arrays; `encode` goes on in plain Python, as it did for the texts before."""
    pytest.importorskip("numba", reason="compiled code needs numba")
    from gpack.errors import FormatError
    from gpack.tokenizer import compiled

    def refuse(*_: object, **__: object) -> None:
        raise FormatError("damaged", code="tokenizer.triples")

    made = switch(monkeypatch, on_disk=True)
    made.spent = LOADING
    monkeypatch.setattr(bpe, "BYTE_PAIRS", made)
    monkeypatch.setattr(compiled, "CompiledBpe", refuse)
    tokenizer = tiny(tmp_path)
    for _ in range(2):
        assert tokenizer.encode("hello") == tokenizer.encode_plain("hello")
    with pytest.raises(FormatError):
        tokenizer.encode_compiled("hello")
