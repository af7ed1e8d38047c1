"""GGUF files, the models of llama.cpp: their headers, weights, tokenizers and templates."""
