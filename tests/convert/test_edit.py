"""Packs with changes: weights stay, types are kept, every rule holds, and what does not fit is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from serve.serving import write_model

import gpack
from gpack.cli import main
from gpack.convert.edit import Changes, edit
from gpack.convert.gguf import convert_gguf
from gpack.errors import GpackError
from gpack.sources.gguf import GgufSource
from gpack.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edit")
    convert_gguf(write_model(folder), folder / "m.gpack")
    return folder / "m.gpack"


def edited(pack: Path, tmp_path: Path, **changes: Any) -> Path:
    edit(pack, tmp_path / "new.gpack", Changes(**changes))
    report = gpack.verify(tmp_path / "new.gpack").report
    assert report.ok, report.violations
    return tmp_path / "new.gpack"


def code(pack: Path, tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(GpackError) as caught:
        edit(pack, tmp_path / "new.gpack", Changes(**changes))
    assert list(tmp_path.iterdir()) == []
    return caught.value.code


def test_a_set_key_is_what_converting_the_changed_gguf_gives(pack: Path, tmp_path: Path) -> None:
    """An independent way to the same file: the GGUF, with the change, converted."""
    new = edited(pack, tmp_path, values={"general.name": "another", "general.author": "somebody"})
    with GgufSource.open(next(pack.parent.glob("*.gguf"))) as source:
        entries = {key: value.python() for key, value in source.metadata.items()}
    with gpack.open(new) as made, gpack.open(pack) as before:
        assert made.manifest["model"]["name"] == "another"
        assert dict(made.metadata) == {**entries, "general.name": "another", "general.author": "somebody"}
        assert {name: bytes(value.tobytes()) for name, value in made.items()} == {
            name: bytes(value.tobytes()) for name, value in before.items()
        }
        wanted = {entry["name"]: entry["sha256"] for entry in before.manifest["sections"]}
        found = {entry["name"]: entry["sha256"] for entry in made.manifest["sections"]}
        assert {name for name in wanted if wanted[name] != found[name]} == {"MetadataKvBin"}
    gpack.export_gguf(new, tmp_path / "again.gguf")
    gpack.convert_gguf(tmp_path / "again.gguf", tmp_path / "again.gpack", name="another")
    assert (tmp_path / "again.gpack").read_bytes() == new.read_bytes()


def test_weights_are_not_read_again(pack: Path, tmp_path: Path) -> None:
    """Of a pack with a damaged weight the digest is taken over: a full verify finds it in the new one too."""
    damaged = tmp_path / "damaged.gpack"
    data = bytearray(pack.read_bytes())
    with gpack.open(pack) as opened:
        place = opened.place(next(name for name in opened if "ffn_down" in name))
        data[place.offset] ^= 1
    damaged.write_bytes(data)
    edit(damaged, tmp_path / "new.gpack", Changes(values={"general.name": "x"}))
    assert set(gpack.verify(tmp_path / "new.gpack").report.counts) == {"section.sha256"}


def test_types_are_kept_and_new_keys_get_theirs(pack: Path, tmp_path: Path) -> None:
    architecture = "llama"
    values = {
        f"{architecture}.context_length": "1234",
        "a.whole": "7",
        "a.negative": "-7",
        "a.float": "0.5",
        "a.flag": "true",
        "a.text": "some words",
        "a.quoted": '"5"',
        "a.null": "null",
        "a.list": '["x", "y"]',
        "a.numbers": "[1, 2, 3]",
    }
    with gpack.open(pack) as before:
        architecture = before.metadata["general.architecture"]
    values[f"{architecture}.context_length"] = values.pop("llama.context_length")
    with gpack.open(edited(pack, tmp_path, values=values)) as made:
        assert made.manifest["model"]["context_length"] == made.metadata[f"{architecture}.context_length"] == 1234
        assert made.metadata["a.negative"] == -7
        assert made.metadata["a.float"] == 0.5
        assert made.metadata["a.flag"] is True
        assert made.metadata["a.text"] == "some words"
        assert made.metadata["a.quoted"] == "5"
        assert made.metadata["a.null"] == "null"
        assert made.metadata["a.list"] == ["x", "y"]
        assert made.metadata["a.numbers"] == [1, 2, 3]


def test_template_and_files(pack: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}é"
    new = edited(pack, tmp_path, template=template.encode(), assets={"LICENSE": b"mine", "a.json": b"{}"})
    with gpack.open(new) as made, Tokenizer.open(new) as tokenizer, Tokenizer.open(pack) as before:
        assert tokenizer.chat_template == template
        assert made.manifest["tokenizer"]["has_chat_template"] is True
        assert bytes(made.asset("LICENSE")) == b"mine"
        assert tokenizer.encode("Hello there") == before.encode("Hello there")
    (tmp_path / "more").mkdir()
    edit(new, tmp_path / "more" / "n.gpack", Changes(removed_assets=("LICENSE", "a.json")))
    with gpack.open(tmp_path / "more" / "n.gpack") as made:
        assert "LICENSE" not in made.assets()
    assert gpack.verify(tmp_path / "more" / "n.gpack").report.ok


def test_digests_of_chunks_are_made_anew(pack: Path, tmp_path: Path) -> None:
    from gpack.convert.seal import seal

    seal(pack, tmp_path / "sealed.gpack")
    edit(tmp_path / "sealed.gpack", tmp_path / "new.gpack", Changes(values={"general.name": "x"}))
    assert gpack.verify(tmp_path / "new.gpack").report.ok
    with gpack.open(tmp_path / "new.gpack") as made:
        assert any(entry["name"] == "ChunkDigests" for entry in made.manifest["sections"])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, "usage"),
        ({"values": {"llama.block_count": "many"}}, "usage"),
        ({"values": {"llama.block_count": "1.5"}}, "usage"),
        ({"values": {"llama.block_count": "-1"}}, "usage"),
        ({"values": {"llama.block_count": "4294967296"}}, "usage"),
        ({"values": {"llama.block_count": "true"}}, "usage"),
        ({"values": {"tokenizer.ggml.tokens": "x"}}, "usage"),
        ({"values": {"tokenizer.ggml.tokens": "[1]"}}, "usage"),
        ({"values": {"a": "[]"}}, "usage"),
        ({"values": {"llama.rope.freq_base": "1e39"}}, "usage"),
        ({"values": {"llama.rope.freq_base": f"1{'0' * 400}"}}, "usage"),
        ({"values": {"llama.rope.freq_base": "NaN"}}, "usage"),
        ({"values": {"general.name": "\udcff"}}, "usage"),
        ({"values": {"a": '["\\ud800"]'}}, "usage"),
        ({"values": {"a": '"\\ud800"'}}, "usage"),
        ({"values": {"a": '[1, "b"]'}}, "usage"),
        ({"values": {"gexec.x": "1"}}, "metadata.forbidden"),
        ({"removed": ("absent",)}, "pack.no_key"),
        ({"removed_assets": ("absent",)}, "pack.no_asset"),
        ({"assets": {"../x": b""}}, "assets.path"),
        ({"template": b"\xff"}, "usage"),
    ],
)
def test_what_is_refused_writes_nothing(pack: Path, tmp_path: Path, changes: Any, wanted: str) -> None:
    with gpack.open(pack) as opened:
        architecture = opened.metadata["general.architecture"]
    if "values" in changes:
        changes = {"values": {key.replace("llama", architecture): text for key, text in changes["values"].items()}}
    assert code(pack, tmp_path, **changes) == wanted


def test_a_result_that_would_break_a_rule_is_not_written(pack: Path, tmp_path: Path) -> None:
    with pytest.raises(GpackError, match="would break a rule") as caught:
        edit(pack, tmp_path / "new.gpack", Changes(values={"general.alignment": "3"}))
    assert caught.value.code
    assert list(tmp_path.iterdir()) == []


def test_the_command(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    words = ["edit", str(pack), "-o", str(tmp_path / "n.gpack"), "--set", "general.name=A=B", "--template"]
    words += [str(tmp_path / "t.jinja"), "--add-asset", str(tmp_path / "t.jinja"), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    with gpack.open(found["output"]) as made:
        assert made.metadata["general.name"] == "A=B"
        assert "t.jinja" in made.assets()
    assert main(["edit", str(pack), "-o", str(tmp_path / "m.gpack"), "--set", "nothing"]) == 2
    os.link(pack, tmp_path / "link.gpack")
    assert main(["edit", str(pack), "-o", str(tmp_path / "link.gpack"), "--set", "a=b"]) == 2
    assert "convert.same_file" in capsys.readouterr().err
