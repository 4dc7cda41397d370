"""One definition of the model, for tracing and for training: sharded operators, a block, and its ends."""
