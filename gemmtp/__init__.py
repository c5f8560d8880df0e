"""Gemma 4 with its multi-token-prediction drafter, on llama.cpp, in the terminal."""

__version__ = "0.1.0"
