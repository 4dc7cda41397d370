"""Training data: token files, tokenizers, and samples in an order that a position alone decides."""
