"""The template language against Jinja's own sandbox: the same text, or an error in both."""

# ruff: noqa: E501 - templates are lines of their own

from __future__ import annotations

from typing import Any

import pytest
from hf_jinja import NOW, reference

from gpack.errors import GpackError
from gpack.tokenizer.chat import ChatTemplate

CONTEXT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "You are A."},
        {"role": "user", "content": "  hi <|im_end|> there\n"},
        {"role": "assistant", "content": "<think>abc</think>\n\nfoo"},
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [1, 2.5, None, True, "é<>&"]}}}],
        },
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    "s": "  Hello World, a b  c ",
    "n": 7,
    "f": 2.5,
    "l": [3, 1, 2],
    "d": {"b": 1, "a": 2, "items": 5},
    "e": "",
    "nl": "a\nb\n\nc\n",
    "names": ["Bob", "alice", "Carl", "bob"],
}

EXPRESSIONS = r"""
s | s|trim | s.strip() | s.split() | s.split(' ') | s.split(' ',2) | s.rsplit(None,1) | s|upper | s|title | s|capitalize
n/2 | n//2 | n%4 | -n | +f | n**3 | n*f | 1+True | 7-2.5 | 2**-1 | 1/0 | n + s | s + n | none + 1 | 1_000 | 0x1f
l + [4] | l * 2 | (1,2)+(3,) | l[0] | l[-1] | l[5] | l[1:] | l[::-1] | s[::-1] | s[2:7] | s[-3] | s[99] | l[::0] | none[1:]
d.items()|list | d['items'] | d.b | d.get('zz','q') | d|dictsort | d|length | d.keys()|list | d.values()|list | d[1]
nope | nope|default('D') | ''|default('E',true) | nope is defined | nope|length | nope|list | nope ~ 'a' | nope.x | nope()
none | true | None | [none, true, 'x', nope] | 1.0 | 1e20 | 0.1+0.2 | () | ('x',) | {'a':1, 'b':[1,{'c':2}]} | {'a':1}.a
tools|tojson | tools|tojson(indent=2) | messages|tojson(ensure_ascii=true) | nope|tojson | tools | 'é"<>&'|tojson
tools|tojson(separators=(',',':'), sort_keys=true) | d|tojson(indent='--') | [1.0, none, true]|tojson | range|tojson
'a' in s | 'H' in s | 3 in l | 'b' in d | 9 not in l | 1 < 2 < 3 | 1 == 1.0 | 'a' < 'b' | [1,2] == [1,2] | [1,2] < [1,3] | 1 < 'a'
s is string | n is number | d is mapping | l is iterable | l is sequence | d is sequence | none is none | n is odd | 8 is even
n is divisibleby 7 | n is sameas 7 | true is boolean | 1 is true | f is float | n is integer | true is integer | 1 in 'a'
'x' is in 'xyz' | 3 is eq 3 | s is callable | range is callable | 'A' is upper | nope is iterable | nope is mapping | 3 is gt 2
l|sort | l|sort(reverse=true) | names|sort | names|unique|list | names|sort(case_sensitive=true) | l|max | l|min | l|sum
l|first | l|last | l|join(', ') | l|reverse|list | l|map('string')|join | names|map('upper')|list | [[1,2],[3]]|sum(start=[])
messages|map(attribute='role')|list | messages|selectattr('role','equalto','user')|list|length | [1, 'a']|sort
messages|rejectattr('role','eq','user')|map(attribute='role')|join(',') | l|select('odd')|list | l|reject('>', 1)|list
messages|selectattr('tool_calls')|list|length | messages|groupby('role')|map(attribute='grouper')|list | none|map('upper')|list
l|batch(2)|list | l|batch(2,0)|list | l|slice(2)|list | [1,2,3,4,5]|slice(3,'x')|list | messages|map(attribute='nope', default='N')|list
nl|indent | nl|indent(2,true) | nl|indent('>>',false,true) | nl.splitlines() | nl.splitlines(true) | ''|indent(first=true)
'%s-%d-%05.2f-%x-%%' % ('a', 3, 2.5, 255) | '%s' % 5 | '%(a)s' % {'a':1} | '%s %s'|format('a', 1) | '%-5s|' % 'a' | '%d' % 'x'
'{} {} {x:>5}'.format(1, 'b', x='z') | '{0}{1}{0}'.format('a','b') | '{{}}'.format() | '%s %s' % 1 | '%s' % (1,2) | '{}'.format()
'3'|int | 'x'|int(9) | '3.7'|float | 3.7|int | '0x1f'|int(0,16) | 3.14159|round(2) | 3.5|round | 3.2|round(0,'ceil') | -3|abs
'abc'.startswith('a') | 'abc'.endswith(('c','d')) | 'a-b-c'.partition('-') | 'a-b-c'.rpartition('-') | 'abc'.find('c') | 'a'.rjust(3)
'aXbX'.replace('X','Y',1) | 'aXbX'|replace('X','YY') | 'abab'.replace('', '-') | 'abab'.replace('', '-', 2) | ', '.join(['a','b'])
'abc'.removeprefix('a') | 'abc'.removesuffix('c') | 'abc'.count('b') | '12'.isdigit() | 'ab'.center(6) | 'ab'.ljust(4,'.') | '7'.zfill(3)
'ab'.title() | 'ab'.lstrip('a') | 'ß'|upper | 'İ'|lower|length | 'abc'|reverse | ', '.join([1]) | 'a'.index('b') | 'a,b'.split('')
'a' ~ 1 ~ none ~ [1] | not s | s and 1 | e or 'alt' | 'y' if e else 'n' | 'only' if e | (1 if false else 2) + 3 | 'b' ~ 'a'|upper
messages[1:][0]['content'] | messages[0]['nope'] is defined | messages[-1].tool_calls[0].function.arguments | items | list
'multi' 'part' | "esc\n\t\"q\" \u00e9" | s|wordcount | s|e | '<a>&"'|escape | 5|string + 'x' | d|items|list | 'a'|attr('upper') is defined
range(3)|list | range(1,10,3)|list | range(3)|length | loop is defined | dict(a=1,b=2) | strftime_now('%d %b %Y') | [1,2]|nope | 1 is nope
messages[2].content.split('</think>')[-1].lstrip('\n') | messages[2].content.split('</think>')[0].split('<think>')[-1]
(messages|selectattr('role','eq','zzz')) and 'truthy' | s.strip(1) | s.nope() | raise_exception('no') | namespace(a=1).b is defined
"""

STATEMENTS = [
    "{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.length }}"
    "{{ loop.cycle('a','b') }}{{ loop.changed(m.role) }}{{ loop.previtem.role if loop.previtem is defined }}"
    "{{ loop.nextitem.role if not loop.last }};{% else %}none{% endfor %}",
    "{% for k in [] %}x{% else %}empty{% endfor %}{% for k in nope %}x{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}{% for c in 'abc' %}{{ c }}-{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    "{% set ns = namespace(a=1, b='') %}{% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}"
    "{% if i == 4 %}{% break %}{% endif %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b ~ i %}{% endfor %}{{ ns.a }}{{ ns.b }}",
    "{% set x = 1 %}{% for i in range(2) %}{{ x }}{% set x = x + 10 %}{{ x }}{% endfor %}{{ x }}",
    "{% if true %}{% set y = 5 %}{% endif %}{{ y }}{% if n == 1 %}1{% elif n == 7 %}seven{% else %}other{% endif %}",
    "{% set x = 1 %}{% with z = 3, w = x %}{{ z }}{{ w }}{% set z = 9 %}{% endwith %}{{ z }}",
    "{% set blk %}in{{ n }}\n{% endset %}[{{ blk }}]{% set blk2 | upper | trim %} abc {% endset %}[{{ blk2 }}]",
    "{% filter upper %}abc{{ s }}{% endfilter %}{% filter replace('b', 'x') | upper %}abc{% endfilter %}",
    "{% macro mm(a, b=2, c=a) %}<{{ a }},{{ b }},{{ c }},{{ varargs }},{{ kwargs }}>{% endmacro %}"
    "{{ mm(1) }}{{ mm(1,b=5) }}{{ mm('q', 3, 4, 5, z=6) }}{{ mm() }}{{ mm(*[1,2], **{'c': 3}) }}",
    "{% macro two(a) %}{{ a }}{% endmacro %}{{ two(1, 2) }}",
    "{% macro two(a) %}{{ a }}{% endmacro %}{{ two(b=2) }}",
    "{% macro wrap() %}[{{ caller(1) if caller }}]{% endmacro %}{% call(q) wrap() %}body{{ q }}{% endcall %}{{ wrap() }}",
    "{% macro rec(n) %}{{ n }}{% if n > 0 %}{{ rec(n-1) }}{% endif %}{% endmacro %}{{ rec(5) }}",
    "{% for i in [1,[2,[3]]] recursive %}{% if i is iterable %}({{ loop(i) }}){{ loop.depth }}{% else %}{{ i }}{% endif %}{% endfor %}",
    "{% set j = joiner('|') %}{{ j() }}{{ j() }}{{ j() }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, g) = (3, 4) %}{{ c }}{{ g }}",
    "{% set a, b = [1] %}",
    "{% block bb %}block{{ n }}{% endblock %}{% generation %}gen {{ n }}{% endgeneration %}|",
    "{# comment #}\n  {%- if n > 3 -%}  trimmed  {%- endif -%}  end {% raw %}{{ raw }}{% endraw %}\n\n",
    "  {% if true %}\n  lstrip\n  {% endif %}\n after\n",
    "{% macro show() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ show() }}{% for later in [6] %}{{ show() }}{% endfor %}",
    "{% for role, group in messages|groupby('role') %}{{ role }}{{ group|length }}{% endfor %}",
    "{% for i in [1,2,3] %}{% for j in [1,2] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for i in 5 %}{% endfor %}",
    "{% if %}",
    "{{ 'a",
    "{% endfor %}",
]


def expressions() -> list[str]:
    found = []
    for line in EXPRESSIONS.strip().splitlines():
        waiting = ""
        # A bar with spaces around it parts two expressions, or is a filter's within one that is not whole.
        for part in line.split(" | "):
            waiting = f"{waiting} | {part}" if waiting else part
            if part in ("items", "list") or waiting.endswith("arguments"):
                continue
            found.append(waiting)
            waiting = ""
        if waiting:
            found.append(waiting)
    return found


def outcome(function: Any, *args: Any, **kwargs: Any) -> str | None:
    try:
        return str(function(*args, **kwargs))
    except Exception:
        return None


def ours(source: str, **context: Any) -> str | None:
    try:
        return ChatTemplate(source).render(now=NOW, **context).text
    except GpackError:
        return None


@pytest.mark.parametrize("expression", expressions())
def test_expressions(expression: str) -> None:
    source = "{{ " + expression + " }}"
    assert ours(source, **CONTEXT) == outcome(reference, source, **CONTEXT)


@pytest.mark.parametrize("source", STATEMENTS)
def test_statements(source: str) -> None:
    assert ours(source, **CONTEXT) == outcome(reference, source, **CONTEXT)


def test_the_expressions_are_many_and_mostly_no_errors() -> None:
    outcomes = [outcome(reference, "{{ " + expression + " }}", **CONTEXT) for expression in expressions()]
    assert len(outcomes) > 220
    assert sum(text is not None for text in outcomes) > 190
