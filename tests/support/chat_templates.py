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


def with_template(model: Path, folder: Path, template: str) -> Path:
    """A copy of a model's folder with this template."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    config = folder / "tokenizer_config.json"
    said = json.loads(config.read_text()) | {"chat_template": template}
    config.write_text(json.dumps(said))
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
