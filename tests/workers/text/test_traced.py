"""A template reads traced texts as any others, and none of their characters becomes its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.text.chat_template import ChatTemplate, _environment
from workers.text.traced import Traced, has_twins, pieces, plain, traced, twins

PROPERTY = settings(max_examples=50)
ALPHABET = 'ab </think>\n\t|"\\é漢🙂ß\U000e0041\U00050000\U00100001'
compiled = cache(lambda source: ChatTemplate(source, {}))
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=12) | st.sampled_from(
    ["<think>a</think>b", " a ", "a\n\nb\n", "</think>", "aaa", "a</think>b</think>c"]
)
METHODS: Sequence[tuple[str, tuple[Any, ...]]] = [
    ("strip", ()), ("lstrip", ()), ("rstrip", ()), ("strip", ("\n a",)), ("lstrip", ("a",)),
    ("rstrip", ("\n",)), ("removeprefix", ("a",)), ("removesuffix", ("b",)),
    ("removesuffix", ("",)),
    ("partition", ("</think>",)), ("rpartition", ("a",)), ("split", ()), ("split", ("a",)),
    ("split", ("aa",)), ("split", (None, 1)), ("split", ("a", 1)), ("rsplit", ()),
    ("rsplit", ("a", 1)), ("rsplit", (None, 1)), ("splitlines", ()), ("splitlines", (True,)),
    ("replace", ("a", "</think>")), ("replace", ("", "</think>")), ("replace", ("", "</p>", 2)),
    ("replace", ("", "</p>", 0)), ("replace", ("a", "", 1)), ("startswith", ("<think>",)),
    ("endswith", ("b",)), ("find", ("a",)), ("rfind", ("a",)), ("count", ("a",)), ("upper", ()),
    ("lower", ()), ("capitalize", ()), ("title", ()), ("swapcase", ()), ("casefold", ()),
    ("isspace", ()), ("isupper", ()), ("isdigit", ()), ("__len__", ()), ("__contains__", ("a",)),
    ("__getitem__", (slice(1, -1),)), ("__getitem__", (slice(None, None, -1),)), ("__eq__", ("a",)),
    ("__lt__", ("b",)), ("__add__", ("</think>",)), ("__hash__", ()), ("__iter__", ()),
]  # fmt: skip


def read(value: Any) -> Any:
    """A value of a method with its texts as a template reads them."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list | tuple) or hasattr(value, "__next__"):
        return list(map(read, value))
    return value


def common(text: str) -> str:
    """Without characters that are two for a template, which counts and cuts them otherwise."""
    return text.replace("\U00050000", "")


@PROPERTY
@given(TEXTS)
def test_a_text_comes_back(text: str) -> None:
    assert list(pieces(twins(text))) == ([(text, True)] if text else [])
    assert list(pieces(traced(text, ["</think>", "", "a"]))) == ([(text, True)] if text else [])
    assert has_twins(twins(text)) == bool(text)


@pytest.mark.parametrize(("name", "arguments"), METHODS)
@PROPERTY
@given(text=TEXTS.map(common))
def test_methods_give_what_those_of_texts_give(
    name: str, arguments: tuple[Any, ...], text: str
) -> None:
    assert read(getattr(traced(text), name)(*arguments)) == read(getattr(text, name)(*arguments))


@pytest.mark.parametrize(("name", "arguments"), METHODS)
@PROPERTY
@given(before=TEXTS, text=st.text("xyz \n|<"), after=TEXTS)
def test_what_is_whose_stays_known(
    name: str, arguments: tuple[Any, ...], before: str, text: str, after: str
) -> None:
    result = getattr(Traced(before + twins(text) + after), name)(*arguments)
    for part in result if isinstance(result, list | tuple) else [result]:
        for piece, is_content in pieces(part) if isinstance(part, str) else ():
            assert is_content or not set("xyzXYZ") & set(piece)
            assert not is_content or not set("abAB") & set(piece)


@PROPERTY
@given(TEXTS)
def test_other_methods_recognise_nothing(text: str) -> None:
    for made in (
        traced(text).center(40), traced(text).expandtabs(), traced(text).zfill(9), traced(text) * 2,
        traced(text) % (), f"{traced(text)}", f"{traced(text)!s}", traced(text).ljust(50),
        "".join([traced(text), "-"]), traced(text).encode().decode(),
        "x".replace("x", traced(text)),
    ):  # fmt: skip
        assert set(text) <= {c for piece, ours in pieces(str(made)) if ours for c in piece}


def test_markers_can_be_hidden() -> None:
    hidden = traced(" what is </think>? ", ["<think>", "</think>"])
    assert "</think>" not in hidden
    assert plain(hidden.strip().split("</think>")[-1]) == "what is </think>?"


WRITTEN = (
    "{{ text | trim }}|{{ text.strip() }}|{{ (text ~ '</think>').split('</think>')[0] | length }}",
    "{{ text | replace('a', '<b>') | upper }}|{{ (text | lower).title() }}|{{ text is string }}",
    "{% set x %}{{ text }}!{% endset %}{{ x.split('</think>')[-1] }}{{ x | first }}{{ x | last }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(text).endswith('b') }}{{ f(text).lstrip() }}",
    "{{ [text, text] | join('\n') | trim }}{{ '-'.join([text]) }}{{ ('-' + text).split('a')[0] }}",
    "{{ text | tojson }}{{ {'a': [text, 1]} | tojson }}{{ (text | tojson) | tojson }}",
    "{{ text | tojson(ensure_ascii=true) }}{{ {'é': text} | tojson(ensure_ascii=true, indent=1) }}",
    "{{ text in ['a', ''] }}{{ text == '' }}{{ text > 'a' }}{{ {'a': 1}[text] }}{{ not text }}",
    "{% for c in text %}{{ 'A' if c == 'a' else c }}{% endfor %}{{ text[:2] }}{{ text[-1:] }}",
    "{{ '%s.' | format(text) | trim }}{{ '{}'.format(text).strip() }}{{ text.content is defined }}",
    "{% filter trim %} {{ text }} {% endfilter %}{{ text | indent(2) }}{{ text | string | list }}",
    "{{ text.split('</think>') | map('trim') | join('|') }}{{ text.partition('a')[2] }}",
    "{% set ns = namespace(x='') %}{% set ns.x = ns.x + text %}{{ ns.x.rstrip() }}",
    "{{ text.center(9) }}{{ text.expandtabs() }}{{ text.zfill(9) }}{{ text.isprintable() }}"
    "{{ text.isidentifier() }}{{ text.ljust(7) | upper }}",
)


@pytest.mark.parametrize("source", WRITTEN)
@PROPERTY
@given(text=TEXTS.map(common))
def test_templates_write_the_same(source: str, text: str) -> None:
    template = compiled(source)
    written = template.render([], {"text": traced(text)})
    assert plain(written) == template.render([], {"text": text})


@pytest.mark.parametrize("source", WRITTEN)
@PROPERTY
@given(text=st.text("xyz<\n é", min_size=1))
def test_templates_take_nothing_of_a_content_for_their_own(source: str, text: str) -> None:
    written = compiled(source).render([], {"text": traced(text)})
    for piece, is_content in pieces(written):
        assert is_content or not set("xyzXYZ") & set(piece)


GIVEN = {
    "attr": "('x')", "batch": "(2)", "center": "(20)", "default": "('a')", "format": "(1)",
    "groupby": "(0)", "indent": "(2)", "join": "('-')", "map": "('upper')",
    "replace": "('a', '</b>')", "slice": "(2)", "truncate": "(3)", "wordwrap": "(3)",
}  # fmt: skip
"""What filters are given that need more than a value."""
FILTERS = sorted({*_environment().filters} - {"random"})
VALUES = ("text", "text ~ '</think>'", "['b', text]", "{'a': text}", "{text: 'a'}")


@pytest.mark.parametrize("name", FILTERS)
@settings(PROPERTY, max_examples=25)
@given(text=TEXTS.map(common) | st.sampled_from(["12", "3.7", "<a&b>", "see http://a.bc/d e"]))
def test_every_filter_writes_the_same(name: str, text: str) -> None:
    for value in VALUES:
        source = f"{{% set it = ({value}) | {name}{GIVEN.get(name, '')} %}}"
        shown = "{{ it if it is string or it is number or it is mapping else it | list }}"
        template = compiled(source + shown)

        def written(given: str, template: ChatTemplate = template) -> str:
            try:
                return template.render([], {"text": given})
            except Exception:
                return "refused"

        assert plain(written(traced(text))) == written(text)


@pytest.mark.parametrize("name", ["urlencode", "escape", "forceescape", "wordwrap(3)"])
def test_what_a_filter_makes_of_a_content_is_a_content(name: str) -> None:
    template = compiled(f"<b>{{{{ text | {name} }}}}</b>")
    made = list(pieces(template.render([], {"text": traced("</think> x y")})))
    assert [is_content for _, is_content in made] == [False, True, False]
    assert (made[0][0], made[2][0]) == ("<b>", "</b>")


def test_an_error_of_the_template_shows_the_text() -> None:
    template = compiled("{{ raise_exception('not ' ~ text) }}")
    with pytest.raises(Exception, match="not that"):
        template.render([], {"text": traced("that")})
