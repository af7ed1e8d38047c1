"""The options of `run.py` and `summarize.py`."""

from __future__ import annotations

from trtla.settings.trtllm_fields import EXECUTOR as EXECUTOR_FIELDS
from trtla.settings.upstream.option import (
    Accepted,
    Flag,
    Needless,
    Program,
    Refused,
    each,
    lists,
    several,
    switch,
)
from trtla.settings.upstream.running import EXECUTOR, MODEL, SAMPLING

_NOT_KEPT = Refused("is not written: numbers of single tokens are not kept", "omit it")
_OTHER_INPUT = Refused("is for models that read more than text", "give prompts as text")
_ONE_BEAM = Refused("asks for beams, and summaries are decoded with one", "use trtla run --num-"
                    "beams")  # fmt: skip
_DTYPES = {"fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}

RUN = Program(
    "run.py",
    "run",
    (
        several("input_text", Accepted(note="several after one flag, as there; no default")),
        Flag(
            "input_file",
            Accepted(
                note="txt; token ids in csv, npy or npz; jsonl with `text`, `messages` or "
                "`input_ids` and settings a line"
            ),
        ),
        Flag("max_output_len", Accepted(note="by default the room that is left")),
        Flag(
            "max_input_length",
            Needless(
                "prompts are not cut: one that is longer than the engine's limit is refused",
                aloud=True,
            ),
            "923",
        ),
        *MODEL,
        switch("fail_fast_on_attention_window_too_large", Needless("always on")),
        Flag(
            "hf_model_dir",
            Accepted("tokenizer_dir", "where that is not given", weak=True),
            also=("model_dir",),
        ),
        Flag(
            "hf_data_type",
            Needless("no Hugging Face model runs beside the engine"),
            "fp16",
            also=("data_type",),
        ),
        switch("streaming", Accepted("stream")),
        *SAMPLING,
        lists(
            "stop_words",
            Accepted("stop", "given once: for all prompts; more often: each prompt's own"),
        ),
        Flag("num_beams", Accepted(note="torch engines, without drafts"), "1"),
        Flag("num_return_sequences", Accepted(note="with `--num-beams`")),
        Flag("length_penalty", Accepted(note="with `--num-beams`; 1.2 by default"), "1.0"),
        *EXECUTOR,
        *each(
            "output_csv output_npy",
            Accepted(note="the folder must exist; rows as there, padded to the longest"),
        ),
        *each("output_logits_npy output_log_probs_npy output_cum_log_probs_npy", _NOT_KEPT),
        switch("output_generation_logits", _NOT_KEPT),
        *each(
            "multimodal_input_file input_token_extra_ids_file",
            _OTHER_INPUT,
        ),
        several("input_token_extra_ids", _OTHER_INPUT),
        Flag(
            "draft_engine_dir",
            Refused(
                "is for two engines of TensorRT-LLM", "use --drafter draft:MODEL, torch engines"
            ),
        ),
        switch("run_profiling", Refused("is a measurement, which run is not", "use trtla bench")),
    ),
    EXECUTOR_FIELDS,
)

SUMMARIZE = Program(
    "summarize.py",
    "summarize",
    (
        switch("test_hf", Accepted(note="greedy here")),
        switch("test_trt_llm", Accepted("test_trtla", "with lookahead and without, in one run")),
        Flag("hf_model_dir", Accepted(), also=("model_dir",)),
        Flag(
            "hf_data_type",
            Accepted("dtype", "of both sides; the engine's own is `auto`", _DTYPES),
            "fp16",
            also=("data_type",),
        ),
        *MODEL,
        Flag(
            "dataset_dir",
            Accepted(
                "dataset",
                "its folder or the one above, parquet, arrow or JSONL; or a `.jsonl` file",
                {"ccdv/cnn_dailymail": "cnn_dailymail"},
            ),
        ),
        Flag(
            "dataset_cache_dir",
            Refused("is not read", "set HF_DATASETS_CACHE in the environment"),
        ),
        Flag("batch_size", Accepted(), "1"),
        Flag("max_ite", Accepted(), "20"),
        Flag("output_len", Accepted("max_output_len"), "100"),
        Flag("max_input_length", Accepted("max_input_len"), "923"),
        Flag(
            "min_input_length",
            Refused("is not read: all articles are summarized", "leave short ones out of the file"),
            "0",
        ),
        Flag(
            "tensorrt_llm_rouge1_threshold",
            Accepted("rouge1_threshold", "exit code 3 below it; also without `--check_accuracy`"),
            "15.0",
        ),
        switch("check_accuracy", Accepted(note="both thresholds, 15 where no other is given")),
        switch(
            "estimate_accuracy_std_dev",
            Refused("is not printed", "use --output FILE.jsonl, which has every summary's figures"),
        ),
        Flag(
            "eval_task",
            Accepted(note="others than `summarize` with a local `--dataset`"),
            "summarize",
        ),
        switch("eval_ppl", Accepted(note="torch engines; of prompt and output, as there")),
        Flag(
            "tensorrt_llm_ppl_threshold",
            Accepted("ppl_threshold", "exit code 3 above it; also without `--check_accuracy`"),
            "15.0",
        ),
        Flag(
            "output_dir",
            Refused("names a folder, and all sides go to one file", "use --output FILE.jsonl"),
        ),
        Flag("rouge_dir", Needless("the package rouge-score computes the same")),
        switch("streaming", Needless("summaries are measured, and printed at the end")),
        *SAMPLING,
        several(
            "stop_words",
            Refused("is not read: a summary ends with an end token", "use --max-output-len"),
        ),
        Flag("num_beams", _ONE_BEAM, "1"),
        Flag("num_return_sequences", _ONE_BEAM, "1"),
        Flag("length_penalty", _ONE_BEAM, "1.0"),
        *EXECUTOR,
    ),
    EXECUTOR_FIELDS,
)
