"""Decoding without llama.cpp: slots, drafts, verification, sampling and their statistics."""
