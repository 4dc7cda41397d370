"""Measured iterations for tests."""

from kareus.prediction.rows import MeasuredIteration

LLAMA = MeasuredIteration(
    line=2,
    family="dgxc",
    gpu="h100-sxm5-80gb",
    model="LLAMA3.1_405B",
    layers=126,
    hidden=16384,
    ffn=53248,
    heads=128,
    kv_heads=8,
    vocab=128256,
    mlp="swiglu",
    norm="rmsnorm",
    position="rope",
    attention="flash",
    dp=4,
    pp=8,
    tp=8,
    cp=2,
    chunks=8,
    sequence_parallel=True,
    sharding="optimizer",
    microbatch_size=1,
    num_microbatches=64,
    seq_len=8192,
    precision="bf16",
    recompute="none",
    tp_overlap="userbuffers",
    compiled=False,
    iteration_time_s=19.81,
)
"""Of 512 GPUs: 16 places for blocks on each stage, two of which embedding and head take."""
HEADER = (
    "family,gpu,model,layers,hidden,ffn,heads,kv_heads,vocab,mlp,norm,position,attention,dp,pp,tp,cp,chunks,"
    "sequence_parallel,sharding,microbatch_size,num_microbatches,seq_len,precision,recompute,tp_overlap,compiled,"
    "iteration_time_s"
)
LLAMA_LINE = (
    "dgxc,h100-sxm5-80gb,LLAMA3.1_405B,126,16384,53248,128,8,128256,swiglu,rmsnorm,rope,flash,4,8,8,2,8,true,optimizer,"
    "1,64,8192,bf16,none,userbuffers,false,19.81"
)
