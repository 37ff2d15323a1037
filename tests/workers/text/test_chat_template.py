"""Templates render as transformers renders them."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from orchestrator.errors import ConfigError
from tests.workers.conftest import TEMPLATE
from workers.text.chat_template import PLAIN_TEMPLATE, ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": "é?"},
    {"role": "assistant", "content": "<think>a</think>\n\nb"},
    {"role": "user", "content": "x"},
]
IDIOMS = {
    "chatml": TEMPLATE,
    "plain": PLAIN_TEMPLATE,
    "indented blocks": """
        {%- for m in messages %}
            {% if m.role == 'user' %}
    U: {{ m.content }}
            {% endif %}
        {% endfor %}
    end""",
    "special tokens": "{{ bos_token }}{% for m in messages %}{{ m['content'] + eos_token }}"
    "{% endfor %}{{ pad_token }}",
    "tools": "{% if tools %}tools{% endif %}{% if tools is defined %}defined{% endif %}"
    "{% if tools is not none and tools | length > 0 %}some{% endif %}"
    "{% if documents is not defined %}none{% endif %}{% if xml is not defined %}-{% endif %}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}"
    "{{ {'b': 1, 'a': 'é<'} | tojson(sort_keys=True, ensure_ascii=True) }}",
    "loop controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "{% if m.role == 'assistant' %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "namespaces": "{% set ns = namespace(last=0, found=false) %}{% for m in messages[::-1] %}"
    "{% if not ns.found and m.role == 'user' %}{% set ns.found = true %}"
    "{% set ns.last = messages | length - loop.index %}{% endif %}{% endfor %}{{ ns.last }}",
    "dictionaries": "{% set d = dict(a=1, **{'b': 2}) %}{{ d.items() | list }}"
    "{{ dict.fromkeys(['x'], 0) }}",
    "string methods": "{% for m in messages %}{% if '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endif %}"
    "{{ m.content[:1].upper() + m.content | trim }}{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% set x = 1 %}"
    "{% generation %}{% set x = 2 %}{{ m.content }}{{ loop.index }}{% endgeneration %}{{ x }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "macros": "{% macro turn(role, text) %}<{{ role }}>{{ caller() if caller }}{{ text }}"
    "{% endmacro %}{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}"
    "{% call turn('a', 'b') %}inside{% endcall %}",
    "prompt": "{% if add_generation_prompt %}go{% endif %}{{ add_generation_prompt }}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}",
    "alternating roles": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = "
    "messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}"
    "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != "
    "(loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}{{ '<<SYS>>' + system_message }}"
    "{% endif %}{{ message['content'].strip() }}{% endfor %}",
    "comments and raw": "{# nothing #}\n{% raw %}{{ x }}{% endraw %}\n{{- ' y ' -}}\n z \n",
}


def theirs(source: str, messages: list[dict[str, str]], prompt: bool = True) -> str:
    texts: Any = render_jinja_template(
        [messages], chat_template=source, add_generation_prompt=prompt, **SPECIAL
    )
    return str(texts[0][0])


@pytest.mark.parametrize("source", IDIOMS.values(), ids=IDIOMS)
def test_idioms_of_public_templates(source: str) -> None:
    template = ChatTemplate(source, SPECIAL)
    for messages in (CHAT, CHAT[:2], CHAT[1:2], CHAT[1:]):
        for prompt in (True, False):
            ours = template.render(messages, {"add_generation_prompt": prompt})
            assert ours == theirs(source, messages, prompt)


def test_today() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}", {})
    assert template.render(CHAT).startswith("20")


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",  # the sandbox: nothing that is given may be changed
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace.__init__() }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ dict.__subclasses__() }}",
        "{{ missing.attribute }}",
    ],
)
def test_what_templates_must_not_do(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source, {}).render(CHAT)
    with pytest.raises(TemplateError):
        theirs(source, CHAT)


def test_a_text_that_is_no_template() -> None:
    with pytest.raises(ConfigError, match="not valid Jinja"):
        ChatTemplate("{% for %}", {})
