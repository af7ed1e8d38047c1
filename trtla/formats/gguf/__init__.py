"""Model files of llama.cpp."""
