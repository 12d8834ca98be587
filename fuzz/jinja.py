"""Templates made by chance, most of them sound: what a mutation of bytes hardly ever makes."""

from __future__ import annotations

from random import Random

from .mutate import Anyhow, Mutate, words

_ATOMS = words("""
messages ¦ m ¦ m.content ¦ m['role'] ¦ messages[0] ¦ messages[-1].content ¦ tools ¦ bos_token ¦ x ¦ ns.b ¦
loop.index0 ¦ loop.last ¦ 0 ¦ 1 ¦ -1 ¦ 2.5 ¦ 'a' ¦ '<|im_end|>' ¦ '' ¦ true ¦ none ¦ [] ¦ [1, 'a'] ¦
{'a': 1} ¦ (1, 2) ¦ 10**9 ¦ range(3) ¦ range(10**9) ¦ 'a' * 10**9 ¦ namespace(b=1) ¦ m.more ¦ m.tool_calls ¦
__class__ ¦ f(1) ¦ joiner(', ') ¦ cycler('a', 'b') ¦ dict(a=1) ¦ strftime_now('%Y') ¦ raise_exception('no') ¦
undefined.more ¦ caller()
""")
_FILTERS = words("""
tojson ¦ tojson(indent=2) ¦ trim ¦ trim('a') ¦ join(',') ¦ join ¦ list ¦ length ¦ upper ¦ lower ¦ title ¦
capitalize ¦ first ¦ last ¦ sort ¦ unique ¦ reverse ¦ items ¦ string ¦ int ¦ float ¦ abs ¦ sum ¦ max ¦ min ¦
safe ¦ escape ¦ indent(4) ¦ replace('a', 'b') ¦ default('d') ¦ map(attribute='role') ¦ map('upper') ¦ select ¦
reject('none') ¦ batch(2) ¦ selectattr('role', 'equalto', 'user') ¦ rejectattr('content') ¦ groupby('role') ¦
dictsort ¦ round(2) ¦ center(9) ¦ slice(2) ¦ wordcount ¦ truncate(3) ¦ format(1) ¦ attr('x') ¦ random ¦
pprint ¦ striptags ¦ urlencode ¦ wordwrap(3)
""")
_TESTS = words("""
defined ¦ undefined ¦ none ¦ string ¦ number ¦ mapping ¦ iterable ¦ sequence ¦ true ¦ odd ¦ even ¦
divisibleby(2) ¦ in ['a'] ¦ eq(1) ¦ sameas(none) ¦ boolean ¦ integer ¦ float ¦ callable ¦ lower
""")
_METHODS = words("""
.split('a') ¦ .strip() ¦ .lstrip('\\n') ¦ .items() ¦ .keys() ¦ .get('a') ¦ .startswith('a') ¦ .upper() ¦
.join(['a']) ¦ [1:] ¦ [::-1] ¦ [:-1] ¦ ['a'] ¦ [0] ¦ .x ¦ .replace('a', 'b', 1) ¦ .format(1) ¦ .count('a') ¦
.title() ¦ .find('a') ¦ .append(1) ¦ .pop() ¦ .update({}) ¦ .rsplit('a', 1) ¦ .splitlines() ¦ .isdigit() ¦
.encode()
""")
_BINARY = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "and", "or", "in", "not in")
_DEPTH = 4


def expression(rng: Random, depth: int = _DEPTH) -> str:
    """An expression."""
    way = rng.randrange(9) if depth else 0
    if way < 2:
        return rng.choice(_ATOMS)
    inner = expression(rng, depth - 1)
    if way == 2:
        return f"({inner} {rng.choice(_BINARY)} {expression(rng, depth - 1)})"
    if way < 5:
        return f"({inner})|{rng.choice(_FILTERS)}"
    if way == 5:
        return f"({inner}){rng.choice(_METHODS)}"
    if way == 6:
        return f"({inner} is {rng.choice(('', 'not '))}{rng.choice(_TESTS)})"
    if way == 7:
        return f"({inner} if {expression(rng, depth - 1)} else {expression(rng, depth - 1)})"
    return rng.choice(("[{}]", "not ({})", "-({})", "{{'a': {}}}", "f({})", "(a)[{}]")).replace("{}", inner)


def statement(rng: Random, depth: int = _DEPTH) -> str:
    """Text, an output, or a block of statements."""
    way = rng.randrange(12) if depth else rng.randrange(3)
    left, right = rng.choice(("{%", "{%-")), rng.choice(("%}", "-%}"))
    if way < 2:
        return "{{ " + expression(rng) + " }}"
    if way == 2:
        return rng.choice(("text ", "\n", "  <|im_start|>", "{# note #}", "{% raw %}{{{% endraw %}", "\u00e9"))
    body = "".join(statement(rng, depth - 1) for _ in range(rng.randrange(1, 3)))
    if way < 5:
        head = rng.choice(
            ("m in messages", "m in messages if m.role", "k, v in m|items", "m in range(3)", f"m in {expression(rng)}")
        )
        way_of, other = rng.choice(("", "", " recursive")), rng.choice(("", "{% else %}none"))
        return f"{left} for {head}{way_of} {right}{body}{other}{{% endfor %}}"
    if way < 7:
        other = rng.choice(("", "{% else %}a", "{% elif " + expression(rng) + " %}b"))
        return f"{left} if {expression(rng)} {right}{body}{other}{{% endif %}}"
    if way == 7:
        return f"{left} set {rng.choice(('x', 'm', 'ns.b', 'x, y'))} = {expression(rng)} {right}"
    if way == 8:
        return f"{{% macro f(x, y=2) %}}{body}{{% endmacro %}}"
    if way == 9:
        return f"{{% set x %}}{body}{{% endset %}}"
    if way == 10:
        return f"{{% filter {rng.choice(_FILTERS)} %}}{body}{{% endfilter %}}"
    return f"{{% call f({expression(rng)}) %}}{body}{{% endcall %}}"


def template(pieces: Mutate) -> Mutate:
    """What puts made statements into a template or in its place, or changes it by pieces."""

    def mutate(data: bytes, rng: Random, anyhow: Anyhow) -> bytes:
        way = rng.randrange(10)
        if way < 2:
            return pieces(data, rng, anyhow)
        made = statement(rng).encode()
        if way < 6:
            # Where one block ends, so that what was sound stays sound.
            ends = [at + 2 for at in range(len(data)) if data[at : at + 2] in (b"}}", b"%}")]
            place = rng.choice([0, len(data), *ends])
            return data[:place] + made + data[place:]
        return made

    return mutate
