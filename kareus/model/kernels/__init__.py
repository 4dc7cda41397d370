"""The functions of `kareus.model.fused` in Triton; imported on GPUs and in Triton's interpreter only.

Every kernel reads its inputs and writes its outputs once. What all rows share (weights of norms, angles) is read once
for several rows. Gradients of norm weights are summed in fp32 over the rows of a program, and the sums of all programs
in a fixed order by a second kernel, so that they are the same in every run.
"""
