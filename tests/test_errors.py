"""Errors: stable codes, all of them listed and all of them used; exit codes; what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpack import errors
from gpack.errors import CODES, GpackError
from gpack.generated.rules import RULES

SOURCES = {
    path: path.read_text()
    for path in (Path(__file__).parents[1] / "src" / "gpack").rglob("*.py")
    if "generated" not in path.parts
}
OUTSIDE = {path: text for path, text in SOURCES.items() if path.name != "errors.py"}


def test_every_code_in_the_source_is_known() -> None:
    used = {(match[1], path.name) for path, text in SOURCES.items() for match in re.finditer(r'\bcode="([^"]*)"', text)}
    assert len(used) > 40
    assert [(code, name) for code, name in used if code not in CODES and code not in RULES] == []


def test_every_listed_code_is_used() -> None:
    whole = "\n".join(OUTSIDE.values())
    assert [code for code in CODES if f'"{code}"' not in whole] == []


def test_codes_are_dotted_names_with_a_meaning() -> None:
    for code, meaning in CODES.items():
        assert re.fullmatch(r"usage|internal|interrupted|[a-z]+\.[a-z0-9_]+", code)
        assert meaning
        assert not meaning.endswith(".")
    assert not set(CODES) & set(RULES)


# Class: exit code, and the builtin exceptions that it also is.
CLASSES: dict[type[GpackError], tuple[int, tuple[type[Exception], ...]]] = {
    errors.FormatError: (1, (ValueError,)),
    errors.BoundsError: (1, (ValueError, errors.FormatError)),
    errors.DigestError: (1, (ValueError, errors.FormatError)),
    errors.UnsupportedError: (4, (NotImplementedError,)),
    errors.PathError: (3, (OSError,)),
    errors.UsageError: (2, (ValueError,)),
    errors.MissingError: (2, (KeyError, LookupError)),
    errors.InternalError: (70, (RuntimeError,)),
    errors.InterruptedRunError: (130, ()),
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_classes(kind: type[GpackError]) -> None:
    status, bases = CLASSES[kind]
    error = kind("it broke", code="x.y", path=Path("/a"), section="S", field="f", offset=7, hint="mend it")
    assert error.exit_code == status
    assert isinstance(error, GpackError)
    assert all(issubclass(kind, base) for base in bases)
    # The same text whatever the builtin base does to it (OSError and KeyError have ideas of their own).
    assert str(error) == "/a: S.f at byte 7: it broke (mend it) [x.y]"
    assert error.to_dict() == {
        "code": "x.y",
        "message": "it broke",
        "path": "/a",
        "section": "S",
        "field": "f",
        "offset": 7,
        "hint": "mend it",
    }


def test_all_classes_are_tested() -> None:
    found = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GpackError)} - {
        GpackError,
        errors.ClosedError,
    }
    assert found == set(CLASSES)
    assert issubclass(errors.ClosedError, ValueError)


@pytest.mark.parametrize(
    ("parts", "text", "fields"),
    [
        ({}, "m [c]", {}),
        ({"path": "p"}, "p: m [c]", {"path": "p"}),
        ({"offset": 0}, "byte 0: m [c]", {"offset": 0}),
        ({"section": "S"}, "S: m [c]", {"section": "S"}),
        ({"field": "f", "offset": 3}, "f at byte 3: m [c]", {"field": "f", "offset": 3}),
        ({"path": "p", "section": "S", "hint": "h"}, "p: S: m (h) [c]", {"path": "p", "section": "S", "hint": "h"}),
    ],
)
def test_what_is_not_known_is_left_out(parts: dict[str, str | int], text: str, fields: dict[str, object]) -> None:
    error = errors.FormatError("m", code="c", **parts)  # type: ignore[arg-type]  # one dict for all keywords
    assert str(error) == text
    assert error.to_dict() == {"code": "c", "message": "m", **fields}


def test_exit_codes_are_those_of_the_readme() -> None:
    found = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert found == {
        "EXIT_OK": 0,
        "EXIT_INVALID": 1,
        "EXIT_USAGE": 2,
        "EXIT_IO": 3,
        "EXIT_UNSUPPORTED": 4,
        "EXIT_INTERNAL": 70,
        "EXIT_INTERRUPTED": 130,
    }


def test_the_guide_to_the_codes_has_them_all() -> None:
    """README.md names the guide; every code that is no rule stands in one of the documents."""
    root = Path(__file__).parents[1]
    documents = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("spec/*.md")]
    text = "\n".join(path.read_text() for path in documents)
    assert [code for code in CODES if f"`{code}`" not in text] == []
