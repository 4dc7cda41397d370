#!/bin/bash
# Pretraining of an 8B on four nodes, as a script of Megatron-LM has it.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8

export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-4}
WORLD_SIZE=$((GPUS_PER_NODE * NUM_NODES))
DATA_PATH=$1   # prefix of the tokens; don't forget it
DTYPE="fp8"
TP=2
PP=${PP:-2}
EXTRA=""

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr ${MASTER_ADDR:-localhost}
)

MODEL_ARGS="
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128 \
    --position-embedding-type rope --rotary-base 500000 --rotary-percent 1.0 \
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
    --max-position-embeddings 8192 --vocab-size 128256 --attention-dropout 0.0 --hidden-dropout 0.0"

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 256
    --seq-length 8192
    --lr 3.0e-4 --min-lr 3e-5 --lr-decay-style cosine
    --train-iters 100000
    --bf16
)
TRAINING_ARGS+=(--clip-grad 1.0 --weight-decay 0.1)

if [[ "$DTYPE" == "fp8" ]]; then
    TRAINING_ARGS+=("--fp8-format hybrid" "--fp8-amax-history-len 1024")
else
    TRAINING_ARGS+=(--fp16)
fi
if [ $PP -gt 1 ]; then
    EXTRA="--num-layers-per-virtual-pipeline-stage 8"
fi

PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP # within a node
    --pipeline-model-parallel-size ${PP}
    --sequence-parallel
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --recompute-granularity selective
)

mkdir -p "$(dirname "$CHECKPOINTS")"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS} ${TRAINING_ARGS[@]} "${PARALLEL_ARGS[@]}" $EXTRA \
    --data-path $DATA_PATH --rampup-batch-size 32 32 1000000 --window-size 4096 0 --save $CHECKPOINTS
