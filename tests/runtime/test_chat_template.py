"""Chat templates filled in without transformers: the same texts, and in a process soon ready."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tests.support.chat_templates import CHATML, LLAMA_3, NO_SYSTEM
from tests.support.examples import examples
from trtla.formats.model_folder import ModelFolder
from trtla.formats.special_tokens import read_tokenizer_config
from trtla.llm.templates import ChatTemplate
from trtla.llm.text import Tokenizer
from trtla.llm.tokenizer_files import read_chat_template
from trtla.settings.executor import ExecutorOptions

LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)
LLAMA_31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if tools is not none %}Environment: ipython{%- for t in tools %}{{ t | tojson(indent=4) }}
{%- endfor %}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN_2 = """{% for message in messages %}
    {% if loop.first and messages[0]['role'] != 'system' %}
<|im_start|>system
You are a helpful assistant.<|im_end|>
    {% endif %}
<|im_start|>{{ message['role'] }}
    {% generation %}
{{ message['content'] }}{% endgeneration %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LOOPS = """{%- set seen = namespace(count=0, names=dict(a=1)) %}
{%- for message in messages %}
  {%- if message.role == 'system' %}{% continue %}{% endif %}
  {%- if seen.count >= 3 %}{% break %}{% endif %}
  {%- set seen.count = seen.count + 1 %}
  {{ message | tojson }} {{ message.content | tojson(ensure_ascii=True) }} {{ pad_token }}
{%- endfor %}{{ seen.count }}"""
FAILING = (
    "{{ messages.append(1) }}",
    "{{ ''.__class__.__mro__ }}",
    "{% for message in messages %}",
    "{{ messages[99].content.x }}",
)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
FORMS = (CHATML, LLAMA_2, LLAMA_3, LLAMA_31, NO_SYSTEM, QWEN_2, LOOPS, *FAILING)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(("user", "assistant", "system")), "content": st.text()},
        optional={"name": st.none() | st.text()},
    ),
    min_size=1,
    max_size=6,
)
ALTERNATING = st.lists(st.text(), min_size=1, max_size=5).map(
    lambda texts: [
        {"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)
    ]
)


@cache
def theirs(template):
    from tests.support.tokenizers import byte_level

    return PreTrainedTokenizerFast(tokenizer_object=byte_level(), chat_template=template, **TOKENS)


def outcome(render):
    try:
        return render()
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("template", FORMS)
@examples(100)
@given(messages=MESSAGES | ALTERNATING)
def test_texts_and_errors_are_those_of_transformers(template, messages):
    def expected():
        return outcome(
            lambda: theirs(template).apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        )

    first, found = expected(), outcome(lambda: ChatTemplate(template, TOKENS).render(messages))
    assert found == first or found == expected()  # a template that shows the date, at midnight


@pytest.mark.parametrize(
    "escape",
    [
        "{{ dict.__init__.__globals__ }}",
        "{{ dict.mro() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set n = namespace(_a=1) %}{{ n._a }}",
        "{% set n = namespace(__class__=1) %}{{ n.__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ (messages | tojson).__class__.__mro__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages[0].update(role='x') }}",
    ],
)
def test_no_template_leaves_the_sandbox(escape):
    messages = [{"role": "user", "content": "a"}]
    found = outcome(lambda: ChatTemplate(escape, TOKENS).render(messages))
    assert found == "" or found[0] == "SecurityError"


def _one(**config):
    return {"tokenizer_config.json": json.dumps({"tokenizer_class": "TokenizersBackend", **config})}


LISTED = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
FOLDERS = {
    "none": _one(bos_token="<|end|>"),
    "text": _one(chat_template="a{{ bos_token }}", bos_token="<|end|>"),
    "listed": _one(chat_template=LISTED),
    "no default": _one(chat_template=LISTED[1:]),
    "file": {**_one(chat_template="a"), "chat_template.jinja": "b\r\nc"},
    "more": {**_one(), "chat_template.jinja": "b", "additional_chat_templates/x.jinja": "c"},
    "only more": {**_one(chat_template="a"), "additional_chat_templates/x.jinja": "c"},
    "processor": {**_one(), "chat_template.json": '{"chat_template": "d"}'},
    "tokens": _one(
        chat_template="{{ image_token }}{{ own_token }}{{ eos_token }}",
        extra_special_tokens={"image_token": "<|end|>"},
        own_token="<|end|>",
        eos_token={"__type": "AddedToken", "content": "<|end|>", "special": True},
    ),
    "older": {
        **_one(chat_template="{{ bos_token }}{{ eos_token }}", eos_token="<|end|>"),
        "special_tokens_map.json": '{"bos_token": "<|end|>"}',
    },
}


@pytest.mark.parametrize("name", FOLDERS)
def test_templates_and_tokens_are_found_as_in_transformers(tmp_path, name):
    from tests.support.tokenizers import byte_level

    byte_level().save(str(tmp_path / "tokenizer.json"))
    for path, text in FOLDERS[name].items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(text.encode())
    files = ModelFolder(tmp_path)
    found = read_chat_template(files, read_tokenizer_config(files))
    expected = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    if found is None:
        assert not expected.chat_template
        return
    assert (found.template, found.tokens) == (expected.chat_template, expected.special_tokens_map)
    assert Tokenizer(tmp_path).has_chat_template == bool(found.text())


def test_the_process_imports_little():
    code = (
        "import sys, trtla.llm.templates as t; t.ChatTemplate('', {}).render([]); "
        "print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "transformers", "pydantic"} & set(ran.stdout.split())


def test_answers_depend_on_a_given_template_by_its_text(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text(NO_SYSTEM)
    for one in (file, str(file), NO_SYSTEM):
        assert ExecutorOptions(chat_template=one).of_answers["chat_template"] == NO_SYSTEM
