"""Hostile templates: each ends with a typed error, in bounded time and memory."""

# ruff: noqa: E501 - templates are lines of their own

from __future__ import annotations

import resource
import time

import pytest

from gpack.errors import GpackError
from gpack.tokenizer.chat import ChatLimits, ChatTemplate

SECONDS = 10  # of the CPU: far above what any of them takes, for slow machines
GROW = "{% set n = namespace(x=START, y=START) %}{% for i in range(60) %}{% set n.x = STEP %}{% set n.y = STEPY %}{% endfor %}"


def grow(start: str, step: str, then: str) -> str:
    return GROW.replace("START", start).replace("STEPY", step.replace("n.x", "n.y")).replace("STEP", step) + then


def over(body: str, before: str = "") -> str:
    return before + "{% for i in range(99999) %}{% for j in range(99999) %}" + body + "{% endfor %}{% endfor %}"


BIG = "{% set s = 'a' * 1000000 %}{% set t = 'a' * 1000000 %}"

LIMIT = {
    "loops": over(""),
    "a loop that prints": over("x"),
    "a huge range": "{% for i in range(10**9) %}{% endfor %}",
    "a range beyond sizes": "{{ range(10**30)|list }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursion that branches": "{% macro m(n) %}{% if true %}{{ m(n+1) }}{{ m(n+1) }}{% endif %}{% endmacro %}{{ m(1) }}",
    "a recursive loop": "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "macros that double": "{% macro m0() %}x{% endmacro %}"
    + "".join(f"{{% macro m{n + 1}() %}}{{{{ m{n}() }}}}{{{{ m{n}() }}}}{{% endmacro %}}" for n in range(50))
    + "{{ m50() }}",
    "a long string": "{{ 'a' * 10**9 }}",
    "a long list": "{{ [1] * 10**9 }}",
    "a power": "{{ 2 ** 100000 }}",
    "a product": grow("7", "n.x * n.x", "{{ n.x }}"),
    "a string that doubles": grow("'ab'", "n.x ~ n.x", "{{ n.x }}"),
    "a sum that doubles": grow("'ab'", "n.x + n.x", "{{ n.x }}"),
    "a list that doubles": grow("[1]", "n.x + n.x", "{{ n.x }}"),
    "a list of itself, printed": grow("[1]", "[n.x, n.x]", "{{ n.x }}"),
    "a list of itself, as JSON": grow("[1]", "{'a': n.x, 'b': n.x}", "{{ n.x|tojson }}"),
    "a list of itself, compared": grow("[1]", "[n.x, n.x]", "{{ n.x == n.y }}"),
    "a list of itself, ordered": grow("[1]", "[n.x, n.x]", "{{ n.x < n.y }}"),
    "a list of itself, looked for": grow("[1]", "[n.x, n.x]", "{{ n.x in [n.y] }}"),
    "a list of itself, counted": grow("[1]", "[n.x, n.x]", "{{ [n.y].count(n.x) }}"),
    "a deep list": "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
    "a gigabyte printed": over("{{ s }}", BIG),
    "a gigabyte kept": "{% set x %}" + over("{{ s }}", BIG) + "{% endset %}",
    "join": "{{ range(99999)|join('a' * 100000) }}",
    "join of empty strings": BIG + "{{ s.join([''] * 99999) }}",
    "replace": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "replace of nothing": "{{ ('a' * 100000)|replace('', 'b' * 100000) }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "center": "{{ 'a'|center(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "indent": "{{ ('a\n' * 100000)|indent(100000) }}",
    "a field's width": "{{ '%999999d' % 1 }}",
    "an indent of JSON": "{{ [1]|tojson(indent=10**9) }}",
    "batch": "{{ [1]|batch(10**9, 0)|list }}",
    "slice": "{{ [1]|slice(10**9, 0)|list }}",
    "a search from behind": "{{ ('a' * 4000000).rfind('ab' + 'a' * 2000000) }}",
    "strip of many": "{{ ('a' * 4000000).strip('b' * 2000000 + 'a') }}",
    "many searches": over("{{ 'b' in s }}", BIG),
    "many comparisons": over("{{ s == t }}", BIG),
    "many changes of case": over("{% set u = s|upper %}", BIG),
    "many lists": over("{% set u = s|list %}", BIG),
    "many splits": over("{% set u = ('a ' * 100000).split() %}"),
    "many words": over("{{ s|wordcount }}", "{% set s = 'a b' * 300000 %}"),
    "many elements": over("{{ 2 in l }}", "{% set l = [1] * 1000000 %}"),
    "filters of filters": "{{ range(99999)|map('center', 100000)|list }}",
    "a sum of strings": "{{ (['aaaaaaaaaaaaaaaaaaaa'] * 99999)|sum(start='') }}",
    "deep parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "a long sum": "{{ 1" + "+1" * 20000 + " }}",
    "a long source": "x" * 2_000_000,
}

UNSAFE = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ ['']|map(attribute='__class__')|list }}",
    "{{ [''] | sort(attribute='__class__') }}",
    "{{ range(9)|groupby('__class__') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ namespace.__init__ }}",
    "{% set n = namespace() %}{{ n.__class__ }}",
    "{% for i in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m.__closure__ }}",
    "{{ self.__init__ }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{0[a]}'.format({'a': 1}) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages.clear }}",
    "{{ ''.encode() }}",
]

RENDER = [
    "{{ 1/0 }}",
    "{{ 'a' + 1 }}",
    "{{ nope.x }}",
    "{{ nope() }}",
    "{{ none.x.y }}",
    "{{ 1|nope }}",
    "{{ 1 is nope }}",
    "{{ range('a') }}",
    "{{ ''.join(1) }}",
    "{{ 'a'.split('') }}",
    "{{ range|tojson }}",
    "{{ {[1]: 2} }}",
    "{{ 'a'.strip(1, 2, 3) }}",
    "{{ strftime_now('%1000000000d') }}",
    "{{ strftime_now('%c' * 100000) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ 1.5|round(10**9) }}",
    "{% set n = namespace() %}{% set n.l = [n] %}{{ n.l }}",
    "{% set n = namespace() %}{% set n.l = [n] %}{{ n.l|tojson }}",
    "{% set x.y = 1 %}",
    "{% for a, b in [1] %}{% endfor %}",
    "{{ (1).bit_length() }}",
    "{{ (-1) ** 0.5 }}",
    "{{ lipsum() }}",
]


def code(source: str, limits: ChatLimits | None = None) -> str:
    with pytest.raises(GpackError) as caught:
        ChatTemplate(source, limits=limits).render([{"role": "user", "content": "hi"}])
    return caught.value.code


@pytest.mark.parametrize("name", LIMIT)
def test_limits(name: str) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    assert code(LIMIT[name]) == "chat.limit"
    assert time.process_time() - begin < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300 << 10  # KiB


@pytest.mark.parametrize("source", UNSAFE)
def test_nothing_is_in_reach(source: str) -> None:
    assert code(source) == "chat.unsafe"


@pytest.mark.parametrize("source", RENDER)
def test_faults_while_rendering(source: str) -> None:
    assert code(source) == "chat.render"


@pytest.mark.parametrize(
    "source", ["{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% from 'x' import y %}"]
)
def test_no_other_templates(source: str) -> None:
    assert code(source) == "chat.unsupported"


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ 'a", "{{ }}", "{% endfor %}", "{# open", "{{ " + "9" * 10_000 + " }}", "{% do x %}"]
)
def test_no_jinja(source: str) -> None:
    assert code(source) == "chat.template"


def test_the_clock_ends_it() -> None:
    limits = ChatLimits(steps=1 << 60, seconds=0.2)
    begin = time.process_time()
    assert (
        code("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", limits) == "chat.limit"
    )
    assert time.process_time() - begin < SECONDS


@pytest.mark.parametrize(
    ("limits", "source"),
    [
        (ChatLimits(output=10, steps_per_input=0), "{{ 'x' * 100 }}"),
        (ChatLimits(characters=10, characters_per_input=0), "{% set a = 'x' * 100 %}"),
        (ChatLimits(steps=10, steps_per_input=0), "{% for i in range(100) %}{% endfor %}"),
        (ChatLimits(depth=1), "{% macro a() %}x{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ b() }}"),
    ],
)
def test_limits_are_the_caller_s(limits: ChatLimits, source: str) -> None:
    assert code(source, limits) == "chat.limit"
    assert ChatTemplate(source).render([]).text is not None


def test_a_template_cannot_change_what_it_was_given() -> None:
    messages = [{"role": "user", "content": "hi", "list": [1]}]
    template = ChatTemplate(
        "{% set m = messages[0] %}{% set m = dict(m, content='x') %}{{ m.content }}{{ m.list + [2] }}"
    )
    assert template.render(messages).text == "x[1, 2]"
    assert messages == [{"role": "user", "content": "hi", "list": [1]}]
