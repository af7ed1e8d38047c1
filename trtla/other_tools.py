"""Names that llama.cpp, vLLM, Ollama, transformers and others use for flags, commands, arguments,
fields and routes, and what serves here; docs/other-tools.md is the page of it."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

_TABLE = {
    # a name here: the names there, with the dash of options that llama.cpp spells with a single one
    "bfloat16": "bf16",
    "block_reuse": "enable_prefix_caching kv_cache_enable_block_reuse",
    "cache": "cache_salt",
    "chat_template": "chat_format",
    "choice": "enum",
    "convert": "quantize",
    "device": "gpu_layers n_gpu_layers num_gpu -ngl",
    "drafter": "assistant_model prompt_lookup_num_tokens spec_type speculative_config "
    "speculative_model",
    "dtype": "torch_dtype",
    "float16": "f16 fp16 half",
    "float32": "f32 fp32",
    "gamma": "draft_max draft_n num_assistant_tokens num_speculative_tokens",
    "gamma_min": "draft_min",
    "grammar": "grammar_file guided_decoding response_format structured_outputs",
    "guided_choice": "choice",
    "guided_grammar": "ebnf",
    "guided_regex": "regex",
    "input_file": "prompts",
    "input_text": "prompt",
    "inspect": "show",
    "int8": "q8_0",
    "json_schema": "-j json schema",
    "kv_cache_enable_block_reuse": "cache_prompt cache_reuse enable_prefix_caching",
    "lark": "ebnf gbnf grammar",
    "max_batch_size": "max_num_seqs parallel -np",
    "max_output_len": "max_length max_new_tokens n_predict num_predict",
    "max_seq_len": "context_length ctx_size max_model_len n_ctx num_ctx",
    "max_tokens": "max_new_tokens n_predict",
    "model": "-hf model_path",
    "no_kv_cache_enable_block_reuse": "no_enable_prefix_caching",
    "num_beams": "use_beam_search",
    "prompts": "input_file",
    "quiet": "log_disable no_display_prompt",
    "regex": "pattern",
    "repetition_penalty": "repeat_penalty",
    "replicas": "data_parallel_size",
    "request_timeout": "timeout",
    "response_format": "format guided_json_object json_schema",
    "run": "complete generate",
    "sampling": "sampling_params",
    "seed": "-s",
    "serve": "base_url url",
    "served_model_name": "-a alias",
    "stop": "-r reverse_prompt stop_strings",
    "system": "-sys system_prompt",
    "temperature": "do_sample",
    "threads": "n_threads num_thread num_threads -t -tb threads_batch",
    "tokenizer_dir": "tokenizer",
    "tool_choice": "function_call",
    "tools": "functions",
    "tp_size": "tensor_parallel_size -tp",
    "verbose": "-lv verbose_prompt",
    # a route here: the routes there that come nearest
    "/v1/chat/completions": "/api/chat /apply-template /v1/messages",
    "/v1/completions": "/api/generate /generate /infill",
    "/v1/models": "/api/ps /api/show /api/tags /get_model_info /props /v1",
    "/metrics": "/load /slots /get_server_info /server_info",
    # what to do, a hint: the names there
    "a file as one prompt is -p - < FILE, a prompt a line --input-file FILE": "-f file",
    "a model is a folder or a file of yours, or in Hugging Face's cache": "list ls ps rm",
    "choose GPUs by CUDA_VISIBLE_DEVICES": "-dev main_gpu -mg -sm split_mode tensor_split -ts",
    "give --system, --chat-template and sampling flags in a preset, --config FILE": "create",
    "give its settings as fields of the request": "options",
    "keys and values have one type, --kv-cache-dtype int8": "cache_type_k cache_type_v -ctk -ctv",
    "name a model on the hub as org/name, it is downloaded once": "pull",
    "name it by -m org/name@revision": "revision",
    "name the draft model by --drafter draft:PATH": "-md model_draft spec_draft_model",
    "name the triple by --lookahead W,N,G": "lookahead_config",
    "omit it, the model's chat template decides": "chat_template_content_format "
    "enable_auto_tool_choice enable_reasoning jinja no_jinja reasoning_format reasoning_parser "
    "tool_call_parser",
    "omit it, the model's files decide": "generation_config load_format quantization "
    "rope_freq_base rope_freq_scale rope_scale rope_scaling trust_remote_code yarn_orig_ctx",
    "omit it, trtla sees to that": "attention_backend -b batch_size block_size -cb cont_batching "
    "disable_log_requests disable_log_stats enable_chunked_prefill enforce_eager -fa flash_attn "
    "gpu_memory_utilization max_num_batched_tokens mlock mmap no_mmap no_warmup numa swap_space "
    "-ub ubatch_size",
    "put a TLS proxy in front": "ssl_cert_file ssl_certfile ssl_key_file ssl_keyfile",
    "set HF_HOME in the environment": "download_dir",
    "set HF_TOKEN in the environment": "hf_token -hft",
    "start the server with --chat-template": "chat_template",
    "the server always has /metrics": "metrics",
    "the shell writes line breaks: $'one\\ntwo'": "-e escape",
    "trtla chat talks, trtla run answers once": "-cnv conversation -i interactive -no-cnv "
    "no_conversation",
    "trtla has nothing of the kind": "context_shift cpu_offload_gb dry_multiplier dynatemp_range "
    "embedding embeddings enable_lora limit_mm_per_prompt lora lora_modules mirostat -mm mmproj "
    "-mu n_cpu_moe -ot override_kv pipeline_parallel_size pooling -pp reranking rpc samplers "
    "slot_save_path slots typical xtc_probability",
    "use --dtype fp8, w8a16, w4a16 or w4a16-awq": "qformat",
    "use --group-size": "awq_block_size",
    'use chat_template_kwargs, such as {"enable_thinking": false}': "enable_thinking reasoning "
    "reasoning_budget think",
}


def plain(name: str) -> str:
    """A name in lower case, with underscores and without dashes in front."""
    return name.lower().lstrip("-").replace("-", "_")


_HERE: dict[str, list[str]] = {}
_ONE_DASH = set()
"""Options that click would read as a one-letter option with a value."""
for _here, _theirs in _TABLE.items():
    for _name in _theirs.split():
        _HERE.setdefault(plain(_name), []).append(_here)
        if _name.startswith("-") and len(_name) > 2:
            _ONE_DASH.add(_name)


def counterpart(name: str, known: Container[str]) -> str | None:
    """The known name here for a name or a route of another tool; None: there is none."""
    return next((here for here in _HERE.get(plain(name), ()) if here in known), None)


def instead(name: str) -> str | None:
    """A hint for a name of another tool that has no counterpart here; None: it is unknown."""
    return next((here for here in _HERE.get(plain(name), ()) if " " in here), None)


def of_one_dash(args: Sequence[str], taking: Callable[[str], bool]) -> str | None:
    """The first argument that is an option of llama.cpp with one dash and several letters.

    Args:
        taking: whether a flag takes the argument behind it.
    """
    end = args.index("--") if "--" in args else len(args)
    pairs = zip(["", *args], args[:end], strict=False)
    return next((arg for before, arg in pairs if arg in _ONE_DASH and not taking(before)), None)
