"""The options of TensorRT-LLM's four programs by release, as its sources and help texts have them.

The keys are the first and the last release with the names; empty: 0.20 or before, 1.2 or later.
"""

from __future__ import annotations

ALL = ("", "")

_RUN_AND_SUMMARIZE = {
    ALL: """
        engine_dir tokenizer_dir tokenizer_type vocab_file hf_model_dir model_dir hf_data_type
        data_type hf_device_map_auto no_add_special_tokens no_prompt_template use_py_session
        debug_mode log_level streaming streaming_interval return_all_generated_tokens
        lookahead_config medusa_choices eagle_choices eagle_posterior_threshold
        eagle_use_dynamic_tree eagle_dynamic_tree_max_top_k draft_target_model_config
        prompt_table_path prompt_tasks num_prepend_vtokens lora_dir lora_task_uids
        lora_ckpt_source language_task_uids
        num_beams num_return_sequences length_penalty early_stopping beam_search_diversity_rate
        beam_width_array temperature top_k top_p min_p repetition_penalty presence_penalty
        frequency_penalty no_repeat_ngram_size random_seed end_id stop_words bad_words
        kv_cache_free_gpu_memory_fraction cross_kv_cache_fraction kv_cache_enable_block_reuse
        enable_chunked_context max_tokens_in_paged_kv_cache max_attention_window_size
        sink_token_length multi_block_mode enable_context_fmha_fp32_acc cuda_graph_mode
        gpu_weights_percent
    """,
    ("", "0.21"): "prompt_lookup_config",
    ("1.0", ""): "ngram_config backend no-kv_cache_enable_block_reuse",
}

NAMES = {
    "convert_checkpoint.py": {
        ALL: """
            model_dir meta_ckpt_dir output_dir dtype tp_size pp_size cp_size workers log_level
            use_weight_only weight_only_precision disable_weight_only_quant_plugin
            quant_ckpt_path group_size use_qserve use_nvfp4 use_fp8 use_fp8_rowwise
            use_meta_fp8_rowwise_recipe fp8_kv_cache int8_kv_cache
            smoothquant per_channel per_token per_group
            calib_dataset calib_size calib_max_seq_length load_by_shard load_model_on_cpu
            use_parallel_embedding embedding_sharding_dim remove_duplicated_kv_heads
            save_config_only moe_tp_size moe_ep_size moe_num_experts moe_top_k moe_renorm_mode
            vocab_size n_positions n_layer n_head n_kv_head n_embd inter_size multiple_of
            ffn_dim_multiplier rms_norm_eps hidden_act rotary_base
        """,
    },
    "trtllm-build": {
        ALL: """
            checkpoint_dir model_config build_config model_cls_file model_cls_name output_dir
            max_batch_size max_input_len max_seq_len max_decoder_seq_len max_beam_width
            max_num_tokens opt_num_tokens max_encoder_input_len max_prompt_embedding_table_size
            max_multimodal_len kv_cache_type paged_kv_cache input_timing_cache
            output_timing_cache profiling_verbosity strip_plan weight_sparsity weight_streaming
            fast_build workers log_level enable_debug_output visualize_network dry_run
            monitor_memory logits_dtype gather_context_logits gather_generation_logits
            gather_all_token_logits lora_dir lora_ckpt_source lora_target_modules max_lora_rank
            speculative_decoding_mode max_draft_len auto_parallel gpus_per_node cluster_key
            bert_attention_plugin gpt_attention_plugin gemm_plugin gemm_swiglu_plugin
            fp8_rowwise_gemm_plugin nccl_plugin lora_plugin dora_plugin moe_plugin
            mamba_conv1d_plugin low_latency_gemm_plugin low_latency_gemm_swiglu_plugin
            gemm_allreduce_plugin context_fmha bert_context_fmha_fp32_acc remove_input_padding
            norm_quant_fusion reduce_fusion user_buffer tokens_per_block use_paged_context_fmha
            use_fp8_context_fmha fuse_fp4_quant multiple_profiles paged_state streamingllm
            use_fused_mlp pp_reduce_scatter
        """,
    },
    "run.py": {
        **_RUN_AND_SUMMARIZE,
        ALL: _RUN_AND_SUMMARIZE[ALL]
        + """
            max_input_length max_output_len input_text input_file multimodal_input_file
            input_token_extra_ids input_token_extra_ids_file output_csv output_npy
            output_logits_npy output_log_probs_npy output_cum_log_probs_npy
            output_generation_logits draft_engine_dir run_profiling
            fail_fast_on_attention_window_too_large
        """,
    },
    "summarize.py": {
        **_RUN_AND_SUMMARIZE,
        ALL: _RUN_AND_SUMMARIZE[ALL]
        + """
            test_hf test_trt_llm eval_task eval_ppl check_accuracy estimate_accuracy_std_dev
            tensorrt_llm_rouge1_threshold tensorrt_llm_ppl_threshold dataset_dir
            dataset_cache_dir batch_size max_ite output_len max_input_length min_input_length
            output_dir rouge_dir
        """,
    },
}
"""The long names by program."""

SHORT = {"convert_checkpoint.py": {"smoothquant": "-sq"}}
"""The short forms by program and long name."""
