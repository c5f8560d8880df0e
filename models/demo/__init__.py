"""How the demo set is trained: corpus, tokenizer, target, drafter and their figures."""
