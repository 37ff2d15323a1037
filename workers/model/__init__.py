"""Causal language models with a tree mask and a preallocated cache. In reading order:

- `tree`: rows, token trees, and what of them is accepted.
- `acceptance`: what was drafted and accepted, by position.
- `target`: a model with a cache: passes over trees, and prefill.
- `placement`: positions, and which cached tokens each token of a pass sees.
- `cache`: the preallocated key/value cache and its slots.
- `transfer`: host values on the device.
- `families`: which families are computed, and what each does beyond Llama's layer.
- `config`: what a config.json says and leaves out.
- `shapes`: a checkpoint's weights: transformers' names for them, and their shapes.
- `network`: a checkpoint as what computes: its layers, made of its weights.
- `layer`: the decoder layer of Llama and Qwen in few operations.
- `linear`: how a weight lies in memory and is multiplied.
- `packed`: weights in 16, 8 or 4 bits for CPUs.
- `four_bits`: groups of weights that share a grid.
- `early_exit`: an early-exit head after a shallow layer.
- `sampling`: next-token distributions, and sampling from them.
- `masking`: logits held to a grammar, at every node of a draft.
"""
