"""Models and tokenizers as llama.cpp's files have them, for scripts/export_gguf.py."""
