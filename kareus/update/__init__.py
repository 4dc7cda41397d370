"""The update of the weights that ends an iteration: its instructions, and the model of what they cost.

Weight gradients are summed over replicas bucket by bucket beside the last backward, tied embeddings exchange theirs,
then every stage clips by the norm of the whole gradient and takes the optimizer's step.
"""
