"""The embedded pair: problem generator, training recipe, checkpoints."""
