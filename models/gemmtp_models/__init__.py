"""Model files and sets: names, manifests, the store, safe GGUF headers and the pair check."""
