"""The options of TensorRT-LLM's four programs, releases 0.20 to 1.2, that have another name here,
or none."""

from __future__ import annotations

from trtla.settings.trtllm_fields import BUILD as BUILD_FIELDS
from trtla.settings.trtllm_fields import EXECUTOR as EXECUTOR_FIELDS
from trtla.settings.trtllm_fields import ON
from trtla.settings.upstream.option import (
    Accepted,
    Fate,
    Needless,
    PassedOn,
    Program,
    Refused,
    table,
)

_ADAPTERS = Refused("is for adapters, which engines here do not have", "merge them into the model")
_CNN = {"ccdv/cnn_dailymail": "cnn_dailymail"}
_DTYPES = {"fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
_EXPERTS = Refused("is for mixtures of experts, which are not converted")
_HEADS = Refused("is for trained heads, which engines here do not have", "use --lookahead")
_LEVELS = Needless(
    ("internal_error", "error", "warning", "info", "verbose", "debug", "trace"),
    "omit it; --verbose shows more, --quiet less",
)
_NGRAMS = Refused("is for TensorRT-LLM's Python loop", "use --drafter prompt-lookup")
_QUANTISATION = Refused("is a quantisation that trtla does not write", "choose a --dtype")
_SIZES = Refused("is read from the model's files", "omit it")
_TEXTS = Refused("is for models that read more than text", "give prompts as text")
_TOKENIZER = Refused("is not read", "give the tokenizer's folder as --tokenizer-dir")
_TWO_ENGINES = Refused("is for two engines", "use --drafter draft:MODEL on a torch engine")
_UNREAD = Refused(
    "is ignored by lookahead", "use --logit-bias or --repetition-penalty on a torch engine"
)

CONVERT = Program(
    "convert_checkpoint.py",
    "convert",
    table(
        {
            "calib_dataset=ccdv/cnn_dailymail": Accepted("calib_data", _CNN),
            "fp8_kv_cache!": Accepted("kv_cache_dtype", gives="fp8"),
            "load_by_shard! load_model_on_cpu! workers": Needless(),
            "log_level=info": _LEVELS,
            "cp_size=1": Refused("splits contexts", "use --tp-size to split the model"),
            "meta_ckpt_dir": Refused(
                "names Meta's files", "give a Hugging Face folder with --model-dir"
            ),
            "int8_kv_cache!": Refused(
                "is not written", "use trtla run --kv-cache-dtype int8 on CPUs"
            ),
            "save_config_only!": Refused(
                "leaves a checkpoint without weights", "use trtla build MODEL --dry-run"
            ),
            "disable_weight_only_quant_plugin! quant_ckpt_path use_qserve! use_nvfp4! "
            "use_fp8_rowwise! use_meta_fp8_rowwise_recipe! per_channel! per_token! per_group! "
            "smoothquant,-sq": _QUANTISATION,
            "calib_max_seq_length=512 use_parallel_embedding! embedding_sharding_dim=0 "
            "remove_duplicated_kv_heads!": Refused(),
            "moe_tp_size=-1 moe_ep_size=-1 moe_num_experts=0 moe_top_k=0 "
            "moe_renorm_mode=1": _EXPERTS,
            "vocab_size=32000 n_positions=2048 n_layer=32 n_head=32 n_kv_head n_embd=4096 "
            "inter_size=11008 multiple_of ffn_dim_multiplier rms_norm_eps=1e-06 "
            "hidden_act=silu rotary_base=10000.0": _SIZES,
        }
    ),
)

BUILD = Program(
    "trtllm-build",
    "build",
    table(
        {
            "max_decoder_seq_len": Accepted("max_seq_len"),
            "input_timing_cache output_timing_cache=model.cache": Accepted("timing_cache"),
            "strip_plan?": PassedOn("use_strip_plan"),
            "fast_build?": PassedOn("plugin_config.manage_weights"),
            "fuse_fp4_quant": PassedOn("plugin_config.fuse_fp4_quant"),  # of late releases
            "bert_attention_plugin moe_plugin mamba_conv1d_plugin bert_context_fmha_fp32_acc "
            "paged_state": Needless(),
            "log_level=info": _LEVELS,
            "kv_cache_type": Needless(("paged",)),
            "paged_kv_cache remove_input_padding": Needless(ON),
            "gpt_attention_plugin=auto": Needless(("auto", "float16", "bfloat16", "float32")),
            "speculative_decoding_mode": Needless(
                ("lookahead_decoding", "none"),
                "give --lookahead 7,7,7; torch engines have trtla run --drafter",
            ),
            "max_beam_width=1": Refused(
                "asks for beams", "omit it; torch engines have trtla run --num-beams"
            ),
            "model_config model_cls_file model_cls_name": Refused(
                "names a model class of your own",
                "give a checkpoint of trtla convert",
            ),
            "build_config": Refused(
                "is not read", "write its keys into a preset: --config PRESET.yaml"
            ),
            "gather_all_token_logits!": Refused(
                "is two options here", "use --gather-context-logits, --gather-generation-logits"
            ),
            "logits_dtype": Refused(
                "is not read", "change it in the config.json of the checkpoint"
            ),
            "auto_parallel=1 gpus_per_node=8 cluster_key": Refused(
                "is not read", "split the model with trtla convert --tp-size"
            ),
            "lora_dir+ lora_ckpt_source=hf lora_target_modules+ max_lora_rank=64 "
            "lora_plugin=disable dora_plugin=disable": _ADAPTERS,
            "max_prompt_embedding_table_size,max_multimodal_len=0 streamingllm=disable "
            "pp_reduce_scatter=disable": Refused(),
        }
    ),
    BUILD_FIELDS,
)

_EITHER: dict[str, Fate] = {
    "lookahead_config": Accepted("lookahead"),
    "random_seed=0": Accepted("seed"),
    "max_tokens_in_paged_kv_cache": PassedOn("kv_cache_config.max_tokens"),
    "max_attention_window_size+": PassedOn("kv_cache_config.max_attention_window"),
    "hf_device_map_auto! no_prompt_template! streaming_interval=5 backend": Needless(),
    "log_level=info": _LEVELS,
    "tokenizer_type vocab_file": _TOKENIZER,
    "no_add_special_tokens!": Refused("is not read", "give input_ids in --input-file of trtla run"),
    "use_py_session! debug_mode!": Refused(
        "asks for the Python session", "omit it; --verbose shows more"
    ),
    "bad_words+ no_repeat_ngram_size": _UNREAD,
    "lora_dir+ lora_task_uids+ lora_ckpt_source=hf language_task_uids+": _ADAPTERS,
    "medusa_choices eagle_choices eagle_posterior_threshold eagle_use_dynamic_tree! "
    "eagle_dynamic_tree_max_top_k": _HEADS,
    "draft_target_model_config": _TWO_ENGINES,
    "prompt_lookup_config ngram_config": _NGRAMS,
    "early_stopping=1 beam_search_diversity_rate=0.0 beam_width_array prompt_table_path "
    "return_all_generated_tokens! prompt_tasks num_prepend_vtokens+ "
    "cross_kv_cache_fraction=0.5": Refused(),
}
_ZERO_KEEPS_ALL = {"top_p": {0.0: 1.0}}

RUN = Program(
    "run.py",
    "run",
    table(
        {
            "hf_model_dir,model_dir": Accepted("tokenizer_dir", weak=True),
            "streaming!": Accepted("stream"),
            "stop_words*": Accepted("stop"),
            "max_input_length=923": Needless(
                note="prompts are not cut: a longer one than the limit is refused"
            ),
            "fail_fast_on_attention_window_too_large! hf_data_type,data_type": Needless(),
            **_EITHER,
            "output_logits_npy output_log_probs_npy output_cum_log_probs_npy "
            "output_generation_logits!": Refused(),
            "multimodal_input_file input_token_extra_ids_file input_token_extra_ids+": _TEXTS,
            "draft_engine_dir": _TWO_ENGINES,
            "run_profiling!": Refused("is a measurement, which run is not", "use trtla bench"),
        }
    ),
    EXECUTOR_FIELDS,
    _ZERO_KEEPS_ALL,
)

SUMMARIZE = Program(
    "summarize.py",
    "summarize",
    table(
        {
            "test_trt_llm!": Accepted("test_trtla"),
            "model_dir": Accepted("hf_model_dir"),
            "hf_data_type,data_type=fp16": Accepted("dtype", _DTYPES),
            "dataset_dir": Accepted("dataset", _CNN),
            "output_len=100": Accepted("max_output_len"),
            "max_input_length=923": Accepted("max_input_len"),
            "tensorrt_llm_rouge1_threshold=15.0": Accepted("rouge1_threshold"),
            "tensorrt_llm_ppl_threshold=15.0": Accepted("ppl_threshold"),
            "rouge_dir streaming!": Needless(),
            **_EITHER,
            "dataset_cache_dir": Refused("is not read", "set HF_DATASETS_CACHE in the environment"),
            "min_input_length=0": Refused("is not read", "leave short articles out of the file"),
            "estimate_accuracy_std_dev! output_dir": Refused(
                "is not written", "use --output FILE.jsonl, which has every summary's figures"
            ),
            "stop_words+": Refused("is not read", "use --max-output-len"),
            "num_beams=1 num_return_sequences=1 length_penalty=1.0": Refused(
                "asks for beams", "use trtla run --num-beams"
            ),
        }
    ),
    EXECUTOR_FIELDS,
    _ZERO_KEEPS_ALL,
)

PROGRAMS: dict[str, Program] = {item.command: item for item in (CONVERT, BUILD, RUN, SUMMARIZE)}
"""TensorRT-LLM's programs by the commands that take their place."""
