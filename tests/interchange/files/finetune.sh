#!/bin/bash
deepspeed --num_gpus 8 finetune.py \
    --model_name_or_path meta-llama/Llama-3.1-8B \
    --deepspeed zero3.json \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --max_seq_length 4096 \
    --gradient_checkpointing True \
    --learning_rate 2e-5 --bf16 True --output_dir out
