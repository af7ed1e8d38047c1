"""The options of `convert_checkpoint.py` for Llama."""

from __future__ import annotations

from trtla.settings.upstream.option import (
    LOG_LEVEL,
    Accepted,
    Flag,
    Needless,
    Program,
    Refused,
    each,
    switch,
)

_NO_SUCH = Refused(
    "is a quantisation that trtla does not write",
    "choose one of --dtype, which trtla convert --help lists",
)
_EXPERTS = Refused("is for mixtures of experts, which are not converted", "omit it")
_STREAMED = Needless("weights are always streamed")
_SIZES = Refused(
    "gives a size of a model without weights", "omit it: sizes are read from --model-dir"
)
_EMBEDDING = Refused(
    "is not chosen here: every rank has the whole embedding", "omit it, it changes no text"
)

CONVERT = Program(
    "convert_checkpoint.py",
    "convert",
    (
        Flag(
            "model_dir",
            Accepted(note="Llama, Mistral and Qwen2 folders, safetensors or `.bin`; GGUF files"),
        ),
        Flag(
            "output_dir",
            Accepted(note="no default; `--force` replaces a checkpoint or an engine"),
            "tllm_checkpoint",
        ),
        Flag("dtype", Accepted(note="the same rule: the model's, float16 for float32"), "auto"),
        Flag("tp_size", Accepted(), "1"),
        Flag("pp_size", Accepted(note="not for lookahead engines of TensorRT-LLM"), "1"),
        Flag(
            "cp_size",
            Refused("splits contexts, which trtla does not", "use --tp-size to split the model"),
            "1",
        ),
        Flag(
            "meta_ckpt_dir",
            Refused(
                "names Meta's original files, which are not read",
                "convert them to a Hugging Face folder, and give it with --model-dir",
            ),
        ),
        switch("use_fp8", Accepted(note="calibrated here, unless the folder is FP8 already")),
        switch(
            "fp8_kv_cache",
            Accepted("kv_cache_dtype", "scales like those of `--use_fp8`", gives="fp8"),
        ),
        switch(
            "int8_kv_cache",
            Refused(
                "is not written", "use trtla run --kv-cache-dtype int8, for torch engines on CPUs"
            ),
        ),
        switch("use_weight_only", Accepted()),
        Flag("weight_only_precision", Accepted(note="no GPTQ"), "int8"),
        switch("disable_weight_only_quant_plugin", _NO_SUCH),
        Flag("quant_ckpt_path", _NO_SUCH),
        Flag("group_size", Accepted(note="of `int8`, `int4` and `w4a16_awq`"), "128"),
        *each(
            "use_qserve use_nvfp4 use_fp8_rowwise use_meta_fp8_rowwise_recipe per_channel "
            "per_token per_group",
            _NO_SUCH,
            takes="switch",
        ),
        Flag("smoothquant", _NO_SUCH, short="-sq"),
        Flag(
            "calib_dataset",
            Accepted(
                "calib_data",
                "CNN/DailyMail, a `.txt` or a `.jsonl` file",
                {"ccdv/cnn_dailymail": "cnn_dailymail"},
            ),
            "ccdv/cnn_dailymail",
        ),
        Flag("calib_size", Accepted(note="-1: all, as there"), "512"),
        Flag(
            "calib_max_seq_length",
            Refused("is not chosen here: 512 tokens of each text are read", "omit it"),
            "512",
        ),
        *each("load_by_shard load_model_on_cpu", _STREAMED, takes="switch"),
        Flag("workers", _STREAMED, "1"),
        switch("use_parallel_embedding", _EMBEDDING),
        Flag("embedding_sharding_dim", _EMBEDDING, "0"),
        switch(
            "remove_duplicated_kv_heads",
            Refused("is for one file of Llama 3.1 405B", "give that model's Hugging Face folder"),
        ),
        switch(
            "save_config_only",
            Refused("leaves a checkpoint without weights", "use trtla build MODEL --dry-run"),
        ),
        Flag("log_level", LOG_LEVEL, "info"),
        *each("moe_tp_size moe_ep_size", _EXPERTS, "-1"),
        *each("moe_num_experts moe_top_k", _EXPERTS, "0"),
        Flag("moe_renorm_mode", _EXPERTS, "1"),
        *(
            Flag(name, _SIZES, default)
            for name, default in {
                "vocab_size": "32000",
                "n_positions": "2048",
                "n_layer": "32",
                "n_head": "32",
                "n_kv_head": "",
                "n_embd": "4096",
                "inter_size": "11008",
                "multiple_of": "",
                "ffn_dim_multiplier": "",
                "rms_norm_eps": "1e-06",
                "hidden_act": "silu",
                "rotary_base": "10000.0",
            }.items()
        ),
    ),
)
