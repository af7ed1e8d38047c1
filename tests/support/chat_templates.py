"""Chat templates of the kinds that models have, put into copies of a model's folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import processors
from transformers import AutoTokenizer

from tests.support import tokenizers

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
LLAMA_3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.first %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if "
    "message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}"
    "{% endif %}{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}"
    "{% endif %}"
)
"""As of models that think in front of an answer, unless `enable_thinking` is false."""
HERMES_TOOLS = (
    "{% if tools %}{{ '<|system|>\n# Tools\n<tools>' }}{% for tool in tools %}{{ '\n' + (tool "
    '| tojson) }}{% endfor %}{{ \'\n</tools>\nCall one as <tool_call>\n{"name": <name>, '
    '"arguments": <object>}\n</tool_call><|end|>\n\' }}{% endif %}{% for message in messages '
    "%}{% if message.role == 'tool' %}{{ '<|user|>\n<tool_response>\n' + message.content + '\n"
    "</tool_response><|end|>\n' }}{% else %}{{ '<|' + message.role + '|>\n' + message.content "
    '}}{% for call in message.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' + '
    "call.function.name + '\", \"arguments\": ' + (call.function.arguments | tojson) + '}\n"
    "</tool_call>' }}{% endfor %}{{ '<|end|>\n' }}{% endif %}{% endfor %}{% if "
    "add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""As of Qwen2.5 and Hermes: arguments are an object."""
LLAMA_3_TOOLS = (
    "{% for message in messages %}{{ '<|' + ('ipython' if message.role == 'tool' else "
    "message.role) + '|>\n' }}{% if tools and loop.first %}{{ 'Respond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.\n\' '
    "}}{% for tool in tools %}{{ (tool | tojson(indent=4)) + '\n' }}{% endfor %}{% endif %}{% "
    "if message.tool_calls %}{% if message.tool_calls | length != 1 %}{{ raise_exception('This "
    "model only supports single tool-calls at once!') }}{% endif %}{% set call = "
    'message.tool_calls[0].function %}{{ \'{"name": "\' + call.name + \'", "parameters": \' + '
    "(call.arguments | tojson) + '}' }}{% elif message.role == 'tool' %}{{ message.content | "
    "tojson }}{% else %}{{ message.content }}{% endif %}{{ '<|end|>\n' }}{% endfor %}{% if "
    "add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""As of Llama 3.1: one call, the answer of a tool as JSON."""
MISTRAL_TOOLS = (
    "{% for message in messages %}{% if message.role == 'user' %}{% if tools and loop.last "
    "%}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}{{ "
    "'[INST] ' + message.content + '[/INST]' }}{% elif message.tool_calls %}{{ '[TOOL_CALLS][' "
    "}}{% for call in message.tool_calls %}{% if call.id | length != 9 %}{{ "
    "raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif "
    '%}{{ \'{"name": "\' + call.function.name + \'", "arguments": \' + call.function.arguments '
    "+ ', \"id\": \"' + call.id + '\"}' }}{% if not loop.last %}{{ ', ' }}{% endif %}{% "
    "endfor %}{{ ']<|end|>' }}{% elif message.role == 'tool' %}{{ "
    '\'[TOOL_RESULTS]{"content": \' + message.content + \', "call_id": "\' + '
    "message.tool_call_id + '\"}[/TOOL_RESULTS]' }}{% else %}{{ message.content + '<|end|>' "
    "}}{% endif %}{% endfor %}"
)
"""As of Mistral, with arguments as their text; the tools stand before the last question."""
GRANITE_TOOLS = (
    "{% set start, end = '<|start_of_role|>', '<|end_of_role|>' %}{% if tools %}{{ start + "
    "'system' + end + 'When a tool is required, respond with <|tool_call|> followed by a JSON list "
    "of tools used.<|end|>\n' + start + 'available_tools' + end }}{% for tool in tools %}{{ "
    "tool | tojson(indent=4) }}{% if not loop.last %}{{ '\n\n' }}{% endif %}{% endfor %}{{ "
    "'<|end|>\n' }}{% endif %}{% for message in messages %}{{ start + ('tool_response' if "
    "message.role == 'tool' else message.role) + end }}{% if message.tool_calls %}{{ "
    "'<|tool_call|>[' }}{% for call in message.tool_calls %}{{ '{\"name\": \"' + "
    "call.function.name + '\", \"arguments\": ' + (call.function.arguments | tojson) + '}' }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' }}{% else %}{{ message.content "
    "}}{% endif %}{{ '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ start + "
    "'assistant' + end }}{% endif %}"
)
"""As of Granite 3: a mark, which is a token, and a list of calls."""
QWEN_CODER_TOOLS = (
    "{% if tools %}{{ '<|system|>\n# Tools\n<tools>' }}{% for tool in tools %}{{ '\n' + (tool | "
    "tojson) }}{% endfor %}{{ '\n</tools>\nCall one as "
    "<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>"
    "<|end|>\n' "
    "}}{% endif %}{% for message in messages %}{% if message.role == 'tool' %}{{ "
    "'<|user|>\n<tool_response>\n' + message.content + '\n</tool_response><|end|>\n' }}{% else "
    "%}{{ '<|' + message.role + '|>' }}{% if message.content is string %}{{ '\n' + "
    "message.content }}{% endif %}{% for call in message.tool_calls or [] %}{% set call = "
    "call.function %}{{ '\n<tool_call>\n<function=' + call.name + '>\n' }}{% for name, value in "
    "call.arguments | items %}{{ '<parameter=' + name + '>\n' }}{{ value | tojson if value is "
    "mapping or (value is sequence and value is not string) else value | string }}{{ "
    "'\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}{{ '<|end|>\n' "
    "}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""As of Qwen3-Coder: each argument in tags, a text as it is and a number as Python writes it."""
GRANITE_4_TOOLS = (
    "{% set start, end = '<|start_of_role|>', '<|end_of_role|>' %}{% if tools %}{{ start + "
    "'system' + end + 'You may call one or more tools, which are in <tools></tools>:\n<tools>' "
    "}}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '\n</tools>\n\nFor each "
    'call, return an object:\n<tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call>.<|end|>\n' }}{% endif %}{% for message in messages %}{% if "
    "message.role == 'tool' %}{{ start + 'user' + end + '\n<tool_response>\n' + message.content + "
    "'\n</tool_response><|end|>\n' }}{% else %}{{ start + message.role + end }}{% if "
    "message.content is string %}{{ message.content }}{% endif %}{% for call in "
    "message.tool_calls or [] %}{% if (loop.first and message.content) or not loop.first %}{{ "
    '\'\n\' }}{% endif %}{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": '
    "' }}{% if call.function.arguments is string %}{{ call.function.arguments }}{% else %}{{ "
    "call.function.arguments | tojson }}{% endif %}{{ '}\n</tool_call>' }}{% endfor %}{{ "
    "'<|end|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ start + 'assistant' + "
    "end }}{% endif %}"
)
"""As of Granite 4: JSON between the tags that Hermes has, the first call at the answer's start."""
HARMONY = (
    "{% macro said(to, text) %}{{ '<|start|>' + to + '<|message|>' + text + '<|end|>' }}"
    "{% endmacro %}{{ said('system', 'Reasoning: ' + (reasoning_effort or 'medium')) }}"
    "{% if tools %}{% set all %}# Tools\n\nnamespace functions {\n{% for tool in tools %}type {{ "
    "tool.function.name }} = {{ (tool.function.parameters or {}) | tojson }};\n{% endfor %}}"
    "{% endset %}{{ said('developer', all) }}{% endif %}{% set asked = namespace(to='') %}"
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% if '<|channel|>' in (message.content or '') %}{{ raise_exception('marks in a content') }}"
    "{% endif %}{% if message.tool_calls %}{% set call = message.tool_calls[0].function %}"
    "{% if message.thinking %}{{ said('assistant<|channel|>analysis', message.thinking) }}"
    "{% endif %}{% set asked.to = 'functions.' + call.name %}"
    "{{ '<|start|>assistant to=' + asked.to + '<|channel|>commentary json<|message|>' "
    "+ (call.arguments | tojson) + '<|call|>' }}"
    "{% else %}{{ said('assistant<|channel|>final', message.content) }}{% endif %}"
    "{% elif message.role == 'tool' %}"
    "{{ said(asked.to + ' to=assistant<|channel|>commentary', message.content | tojson) }}"
    "{% else %}{{ said(message.role, message.content) }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
"""As of gpt-oss: messages with channels, between marks that are tokens."""
_HARMONY_MARKS = ("start", "end", "message", "channel", "constrain", "return", "call")
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 "
    "== 0) %}{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{{ '[' + message['role'] + '] ' + message['content'] }}{% endfor %}"
)
UNREADABLE = "{% for message in messages %}{{ message.content }"
_TOKENS = {
    CHATML: ("<|im_start|>", "<|im_end|>"),
    THINKING: ("<|im_start|>", "<|im_end|>"),
    LLAMA_3: ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
}


def with_template(model: Path, folder: Path, template: str, renamed: str = "") -> Path:
    """A copy of a model's folder with this template; `renamed`: the name of its unused token."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    if renamed:
        for path in folder.glob("*token*.json"):
            path.write_text(path.read_text().replace("<|pad|>", renamed))
    config = folder / "tokenizer_config.json"
    said = json.loads(config.read_text()) | {"chat_template": template}
    config.write_text(json.dumps(said))
    return folder


def harmony_folder(model: Path, folder: Path) -> Path:
    """A copy of a model's folder with the template and the tokens of harmony, in place of the last
    words."""
    with_template(model, folder, HARMONY)
    path = folder / "tokenizer.json"
    said = json.loads(path.read_text())
    words = said["model"]["vocab"]
    known = {token["content"]: token["id"] for token in said["added_tokens"]}
    names = [f"<|{name}|>" for name in _HARMONY_MARKS if f"<|{name}|>" not in known]
    last = sorted(words, key=words.get)[-len(names) :]
    for name, word in zip(names, last, strict=True):
        known[name] = words.pop(word)
        said["added_tokens"].append({**said["added_tokens"][0], "content": name, "id": known[name]})
    merges = said["model"]["merges"]
    said["model"]["merges"] = [pair for pair in merges if "".join(pair) not in last]
    path.write_text(json.dumps(said))
    ends = [known[name] for name in ("<|endoftext|>", "<|return|>", "<|call|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


def tokenizer_folder(folder: Path, template: str) -> Path:
    """Tokenizer files whose special tokens are the template's; the first one begins every text."""
    tokenizer = tokenizers.byte_level()
    names = _TOKENS[template]
    tokenizer.add_special_tokens(list(names))
    begin = names[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin}
    config |= {"eos_token": names[-1], "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def expected_ids(folder: Path, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """What transformers makes of messages."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return tuple(found["input_ids"])
