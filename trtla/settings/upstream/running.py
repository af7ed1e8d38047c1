"""The options that `run.py` and `summarize.py` share and that are the same here in both."""

from __future__ import annotations

from trtla.settings.upstream.option import (
    LOG_LEVEL,
    Accepted,
    Flag,
    Needless,
    PassedOn,
    Refused,
    each,
    several,
    switch,
)

_LORA = Refused("is for adapters, and engines here have none", "merge the adapter into the model")
_SOFT = Refused("is for prompt tuning, which engines here do not have", "write prompts as text")
_HEADS = Refused(
    "is for trained heads, which engines here do not have",
    "use --lookahead; trtla run --help-all lists the drafters of torch engines",
)
_TOKENIZER = Refused(
    "is not read: the tokenizer's own files say what it is", "give its folder as --tokenizer-dir"
)
_NGRAMS = Refused(
    "is for the Python loop of TensorRT-LLM", "use --drafter prompt-lookup, torch engines"
)
_CACHE, _KNOBS = "kv_cache_config.", "extended_runtime_perf_knob_config."

SAMPLING = (
    Flag("temperature", Accepted(note="0 by default: greedy, as `--top_k 1` there"), "1.0"),
    Flag("top_k", Accepted(note="0 by default, which keeps all; 1 is greedy"), "1"),
    Flag("top_p", Accepted(note="0 keeps all, as 1 does", values={"0": "1"}), "0.0"),
    *(
        Flag(name, Accepted(note="torch engines"), default)
        for name, default in (
            ("repetition_penalty", "1.0"),
            ("presence_penalty", "0.0"),
            ("frequency_penalty", "0.0"),
            ("min_p", "0.0"),
        )
    ),
    Flag("random_seed", Accepted("seed"), "0"),
    Flag(
        "early_stopping",
        Refused("is not chosen here: a search ends when all beams have", "omit it"),
        "1",
    ),
    Flag("beam_search_diversity_rate", Refused("is not part of the beam search", "omit it"), "0.0"),
    Flag(
        "beam_width_array",
        Refused("changes the width on the way, which the search does not", "use --num-beams"),
    ),
    several(
        "bad_words",
        Refused(
            "cannot be had: the C++ lookahead ignores it",
            "use --logit-bias ID:-100 on a torch engine",
        ),
    ),
    Flag(
        "no_repeat_ngram_size",
        Refused(
            "cannot be had: the C++ lookahead ignores it",
            "use --repetition-penalty on a torch engine",
        ),
    ),
    Flag("end_id", Accepted(note="in place of the model's; -1: none")),
)
MODEL = (
    Flag("engine_dir", Accepted(note="a Hugging Face folder or a GGUF file too"), "engine_outputs"),
    Flag("tokenizer_dir", Accepted(note="only where the engine folder has no tokenizer")),
    Flag(
        "lookahead_config", Accepted("lookahead", "only where the engine shall take another triple")
    ),
    *each("tokenizer_type vocab_file", _TOKENIZER),
    switch(
        "no_add_special_tokens",
        Refused(
            "is not read: the tokenizer's files say how a text begins",
            "give input_ids in --input-file of trtla run to begin otherwise",
        ),
    ),
    switch("hf_device_map_auto", Needless("`--device` says where models run")),
    switch(
        "no_prompt_template",
        Needless("the default: `--chat` wraps texts, as run.py does Qwen2's by itself"),
    ),
    switch(
        "use_py_session",
        Refused("asks for the Python session, and lookahead runs in the C++ one", "omit it"),
    ),
    switch("debug_mode", Refused("needs the Python session", "omit it; --verbose shows more")),
    Flag("log_level", LOG_LEVEL, "info"),
    Flag("streaming_interval", Needless("every step's tokens are streamed"), "5"),
    switch(
        "return_all_generated_tokens",
        Refused("repeats the text in every chunk", "omit it: chunks are what is new"),
    ),
    *each("prompt_table_path prompt_tasks", _SOFT),
    several("num_prepend_vtokens", _SOFT),
    *(several(name, _LORA) for name in ("lora_dir", "lora_task_uids")),
    Flag("lora_ckpt_source", _LORA, "hf"),
    several("language_task_uids", _LORA),
    *each("medusa_choices eagle_choices eagle_posterior_threshold", _HEADS),
    switch("eagle_use_dynamic_tree", _HEADS),
    Flag("eagle_dynamic_tree_max_top_k", _HEADS),
    Flag(
        "draft_target_model_config",
        Refused("is for two engines of TensorRT-LLM", "use --drafter draft:MODEL, torch engines"),
    ),
    Flag("prompt_lookup_config", _NGRAMS, until="0.21"),
    Flag("ngram_config", _NGRAMS, since="1.0"),
    Flag("backend", Needless("the engine's own backend runs it"), since="1.0"),
)
EXECUTOR = (
    Flag("kv_cache_free_gpu_memory_fraction", Accepted(note="TensorRT-LLM engines"), "0.9"),
    switch(
        "kv_cache_enable_block_reuse",
        Accepted(note="TensorRT-LLM engines; off by default, as there up to 0.21"),
    ),
    Flag(
        "no-kv_cache_enable_block_reuse",
        Accepted("kv_cache_enable_block_reuse", "the default"),
        takes="switch",
        since="1.0",
    ),
    switch("enable_chunked_context", Accepted(note="plain TensorRT-LLM engines")),
    Flag("max_tokens_in_paged_kv_cache", PassedOn(f"{_CACHE}max_tokens")),
    several("max_attention_window_size", PassedOn(f"{_CACHE}max_attention_window")),
    Flag("sink_token_length", PassedOn(f"{_CACHE}sink_token_length")),
    Flag(
        "cross_kv_cache_fraction",
        Refused("is for encoder-decoders of TensorRT-LLM, which trtla does not run", "omit it"),
        "0.5",
    ),
    Flag("multi_block_mode", PassedOn(f"{_KNOBS}multi_block_mode"), "true"),
    switch("enable_context_fmha_fp32_acc", PassedOn(f"{_KNOBS}enable_context_fmha_fp32_acc")),
    switch("cuda_graph_mode", PassedOn(f"{_KNOBS}cuda_graph_mode")),
    Flag("gpu_weights_percent", PassedOn("gpu_weights_percent"), "1"),
)
