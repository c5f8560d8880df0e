"""llama.cpp behind the engine's protocols: the only package that imports ``llama_cpp``."""
