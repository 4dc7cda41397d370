"""What `benchmarks/pipeline.py` is made of: the pipelines, the peer, and the comparison of the two."""
