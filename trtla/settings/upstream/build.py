"""The options of `trtllm-build`, its plugins' among them."""

from __future__ import annotations

from trtla.settings.trtllm_fields import BUILD as BUILD_FIELDS
from trtla.settings.upstream.option import (
    LOG_LEVEL,
    ON,
    Accepted,
    Flag,
    Needless,
    PassedOn,
    Program,
    Refused,
    each,
    several,
    switch,
)

_LORA = Refused("is for adapters, and engines here have none", "merge the adapter into the model")
_AUTO_PARALLEL = Refused(
    "is for the planner that TensorRT-LLM removed", "split the model with trtla convert --tp-size"
)
_OWN_MODEL = Refused(
    "names a model class of your own, and trtla builds the families that it knows",
    "give a checkpoint of trtla convert; trtla doctor MODEL says which families run",
)
_SOFT = Refused("is for prompt tuning, which engines here do not have", "omit it")
_ENCODERS = Needless("for encoders and other families")

_LIMITS = (
    Flag("checkpoint_dir", Accepted(note="a Hugging Face folder or a GGUF file too")),
    Flag(
        "output_dir",
        Accepted(note="no default; the tokenizer is copied along"),
        "engine_outputs",
    ),
    Flag("max_batch_size", Accepted(note="32 by default"), "2048"),
    Flag(
        "max_input_len",
        Accepted(note="raises max_num_tokens, which is what bounds a prompt there"),
        "1024",
    ),
    Flag(
        "max_seq_len",
        Accepted(note="prompt and output; drafts come on top by themselves"),
        also=("max_decoder_seq_len",),
    ),
    Flag(
        "max_num_tokens",
        Accepted(note="raised to a full step of a full batch, as there"),
        "8192",
    ),
    Flag(
        "opt_num_tokens",
        PassedOn("opt_num_tokens", "by default a step of a full batch, drafts counted"),
    ),
    Flag(
        "max_beam_width",
        Refused(
            "asks for beams, which lookahead has none of",
            "omit it; torch engines search with trtla run --num-beams",
        ),
        "1",
    ),
    Flag("max_encoder_input_len", PassedOn("max_encoder_input_len"), "1024"),
    Flag(
        "max_prompt_embedding_table_size",
        _SOFT,
        "0",
        also=("max_multimodal_len",),
    ),
    Flag(
        "max_draft_len",
        Accepted(
            note="computed from `--lookahead`; alone it makes an engine that holds every triple "
            "that needs exactly that many"
        ),
        "0",
    ),
    Flag(
        "speculative_decoding_mode",
        Needless(
            "`--lookahead` or `--max-draft-len` says it",
            ("lookahead_decoding", "none"),
            "is not built here: engines draft by lookahead or not at all",
            "give --lookahead 7,7,7; trtla run --drafter names what else can draft on torch "
            "engines",
        ),
    ),
)
_WORK = (
    Flag("workers", Accepted(), "1"),
    Flag("log_level", LOG_LEVEL, "info"),
    switch(
        "dry_run",
        Accepted(note="shows settings, memory and the `trtllm-build` line to paste"),
    ),
    Flag("input_timing_cache", Accepted("timing_cache", "read if it is there, and written")),
    Flag("output_timing_cache", Accepted("timing_cache", "one file for both"), "model.cache"),
    Flag("profiling_verbosity", PassedOn("profiling_verbosity"), "layer_names_only"),
    switch("strip_plan", PassedOn("use_strip_plan")),
    switch("fast_build", PassedOn("plugin_config.manage_weights")),
    *each(
        "model_config model_cls_file model_cls_name",
        _OWN_MODEL,
    ),
    Flag(
        "build_config",
        Refused(
            "is a file of TensorRT-LLM's, which is not read",
            "write its keys into a preset: --config PRESET.yaml",
        ),
    ),
    *(
        Flag(name, PassedOn(name), takes="switch")
        for name in (
            "weight_sparsity",
            "weight_streaming",
            "enable_debug_output",
            "monitor_memory",
            "gather_generation_logits",
        )
    ),
    Flag("visualize_network", PassedOn("visualize_network")),
    switch("gather_context_logits", Accepted(note="plain engines only")),
    switch(
        "gather_all_token_logits",
        Refused(
            "stands for two options",
            "use --gather-context-logits and --gather-generation-logits",
        ),
    ),
    Flag(
        "logits_dtype",
        Refused(
            "is not chosen here: the checkpoint's config.json says it",
            "omit it, or change logits_dtype there",
        ),
    ),
    Flag(
        "kv_cache_type",
        Needless(
            "always paged",
            ("paged",),
            "is a K/V cache that the executor cannot run",
            "omit it: the cache is paged",
        ),
    ),
    Flag(
        "paged_kv_cache",
        Needless(
            "always on", ON, "leaves a cache that the executor cannot run", "omit it: it is paged"
        ),
    ),
    several("lora_dir", _LORA),
    Flag("lora_ckpt_source", _LORA, "hf"),
    several("lora_target_modules", _LORA),
    Flag("max_lora_rank", _LORA, "64"),
    Flag("auto_parallel", _AUTO_PARALLEL, "1"),
    Flag("gpus_per_node", _AUTO_PARALLEL, "8"),
    Flag("cluster_key", _AUTO_PARALLEL),
)
_PLUGINS = (
    Flag(
        "gpt_attention_plugin",
        Needless(
            "always on, in the model's type",
            ("auto", "float16", "bfloat16", "float32"),
            "switches off what the executor needs",
            "omit it: the plugin takes the model's type",
        ),
        "auto",
    ),
    Flag(
        "remove_input_padding",
        Needless(
            "always on", ON, "makes an engine that the executor cannot run", "omit it: it is on"
        ),
        "enable",
    ),
    Flag("gemm_plugin", PassedOn("plugin_config.gemm_plugin", "by default the engine's type")),
    Flag("nccl_plugin", PassedOn("plugin_config.nccl_plugin"), "auto"),
    *(
        Flag(name, PassedOn(f"plugin_config.{name}"), "disable")
        for name in (
            *("gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin"),
            *("low_latency_gemm_swiglu_plugin", "gemm_allreduce_plugin", "norm_quant_fusion"),
            *("reduce_fusion", "user_buffer", "fuse_fp4_quant", "multiple_profiles"),
        )
    ),
    *(
        Flag(name, PassedOn(f"plugin_config.{name}"), "enable")
        for name in (
            *("context_fmha", "use_paged_context_fmha", "use_fp8_context_fmha"),
            "use_fused_mlp",
        )
    ),
    Flag("tokens_per_block", PassedOn("plugin_config.tokens_per_block"), "32"),
    *each("bert_attention_plugin moe_plugin mamba_conv1d_plugin", _ENCODERS, "auto"),
    Flag("bert_context_fmha_fp32_acc", _ENCODERS, "disable"),
    Flag("paged_state", _ENCODERS, "enable"),
    *each("lora_plugin dora_plugin", _LORA, "disable"),
    Flag(
        "streamingllm",
        Refused("is what TensorRT-LLM supports no longer", "omit it"),
        "disable",
    ),
    Flag(
        "pp_reduce_scatter",
        Refused("is for mixtures of experts, which are not built here", "omit it"),
        "disable",
    ),
)

BUILD = Program("trtllm-build", "build", (*_LIMITS, *_WORK, *_PLUGINS), BUILD_FIELDS)
