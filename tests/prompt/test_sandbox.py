"""A template can neither reach out nor run away: every attempt ends in a clear refusal, soon."""

from __future__ import annotations

import resource
import time

import pytest

from gemmtp.errors import UsageError
from gemmtp.prompt.sandbox import render
from gemmtp.prompt.template import chat_tokens

MEBIBYTE = 1 << 20


def loop(step: str, start: str = "'x'", output: str = "") -> str:
    """Ninety-nine times ``step``, which changes ``at.s``."""
    turns = "{% for i in range(99) %}{% set at.s = " + step + " %}{% endfor %}"
    return "{% set at = namespace(s=" + start + ") %}" + turns + output


def big(what: str) -> str:
    return "{% set s = 'x' * 30000000 %}{{ " + what + " }}"


REACHING = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "the command of CVE-2024-34359": (
        "{% for x in ().__class__.__base__.__subclasses__() %}{% if 'warning' in x.__name__ %}"
        "{{ x()._module.__builtins__['__import__']('os').popen('id').read() }}"
        "{% endif %}{% endfor %}"
    ),
    "globals of a function": "{{ raise_exception.__globals__.os.popen('id') }}",
    "globals of a class": "{{ namespace.__init__.__globals__ }}",
    "cycler": "{{ cycler.__init__.__globals__.os }}",
    "the environment": "{{ self._TemplateReference__context.environment }}",
    "attribute filter": "{{ ''|attr('__class__') }}",
    "another file": "{% include '/etc/passwd' %}",
    "a module": "{% import 'os' as os %}",
    "changing a list": "{{ messages.append(1) }}",
    "changing a message": "{{ messages[0].pop('role') }}",
}
GROWING = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "times": "{{ 'x' * 10**10 }}",
    "times turned": "{{ 10**10 * 'x' }}",
    "list times": "{{ [0] * 10**9 }}",
    "power": "{{ 9**(9**9) }}",
    "squares": loop("at.s * at.s", "10"),
    "tilde": loop("at.s ~ at.s"),
    "plus": loop("at.s + at.s"),
    "lists": loop("at.s + at.s", "[1]"),
    "nested lists": loop("[at.s, at.s]", output="{{ at.s }}"),
    "nested tuples": loop("(at.s, at.s)", output="{{ at.s }}"),
    "nested mappings": loop("{'a': at.s, 'b': at.s}", output="{{ at.s|tojson }}"),
    "nested dict calls": loop("dict(a=at.s, b=at.s)", output="{{ at.s|string }}"),
    "captured blocks": "{% set s %}xxxx{% endset %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 40,
    "slices kept": "{% set s = 'x' * 60000000 %}" + loop("at.s + [s[1:]]", "[]"),
    "upper case kept": "{% set s = 'x' * 60000000 %}" + loop("at.s + [s.upper()]", "[]"),
    "center": "{{ 'x'|center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "format": "{{ '{:999999999}'.format(1) }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "expandtabs": "{{ '\\t'.expandtabs(10**9) }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "replace": big("s.replace('', s)"),
    "replace filter": big("s|replace('x', s)"),
    "join": big("s.join(range(99999))"),
    "join filter": big("range(99999)|join(s)"),
    "indent": "{{ ('\n' * 10000000)|indent(99999) }}",
    "json": "{{ [1]|tojson(indent=10**9) }}",
    "letters": big("s|list|length"),
    "date": "{{ strftime_now('%999999999d') }}",
    "source": "x" * MEBIBYTE,
}
ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "comparisons": "{% set s = 'x' * 60000000 %}{% set t = 'x' * 9000 ~ 'y' %}"
    + "{% if t in s %}{% endif %}" * 4000,
    "macro that calls itself": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "blocks": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
}  # fmt: skip


def refused(template: str) -> str:
    with pytest.raises(UsageError, match="The chat template refused the conversation") as caught:
        chat_tokens([{"role": "user", "content": "Hi"}], lambda text: [1], template=template)
    assert caught.value.hint == "Use --raw to go without a template."
    return caught.value.message


@pytest.mark.parametrize("template", REACHING.values(), ids=REACHING)
def test_a_template_reaches_nothing_but_the_conversation(template: str) -> None:
    refused(template)


@pytest.mark.parametrize("template", GROWING.values(), ids=GROWING)
def test_a_template_that_grows_is_refused_before_it_takes_memory(template: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.thread_time()
    refused(template)
    # Two or three strings of 64 million characters may be alive.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * MEBIBYTE // 1024
    assert time.thread_time() - start < 2


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_does_not_end_is_stopped(template: str) -> None:
    start = time.thread_time()
    refused(template)
    # A second for the template, the rest for compiling it on a slow machine.
    assert time.thread_time() - start < 4


def test_what_chat_templates_use_is_open() -> None:
    source = (
        "{% set at = namespace(n=0) %}{% for m in messages if m.role != 'tool' %}"
        "{% if loop.index > 2 %}{% break %}{% endif %}{% set at.n = at.n + 1 %}"
        "{{ m['content'].strip().split(':')[0] | upper }}{{ ',' if not loop.last }}{% endfor %}"
        "{{ at.n }} {{ {'b': ['é'], 'a': none} | tojson }} {{ 'a b'.replace(' ', '-') | title }}"
        " {{ ['x', 'y'] | join('+') }} {{ 'p\nq' | indent(2) }} {{ messages | map(attribute='role')"
        " | unique | list }} {{ messages[1:] | length }} {{ strftime_now('%%') }}"
    )
    messages = [{"role": "user", "content": " a: b "}] * 3
    assert render(source, {"messages": messages}) == (
        'A,A,2 {"b": ["é"], "a": null} A-B x+y p\n  q [\'user\'] 2 %'
    )


def test_a_thousand_turns_are_no_endless_template() -> None:
    quadratic = (
        "{% for m in messages %}{% for n in messages %}{% if n.role == 'x' %}!{% endif %}"
        "{% endfor %}{% endfor %}done"
    )
    messages = [{"role": "user", "content": "Hi"}] * 1000
    assert render(quadratic, {"messages": messages}) == "done"
