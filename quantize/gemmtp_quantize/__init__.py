"""Checkpoints to GGUF: target and drafter are converted, quantised and checked together."""
