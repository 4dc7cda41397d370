"""Files with measured iterations of mixtures of experts: what their rows ran, and rows that cannot be represented."""

from pathlib import Path

import pytest
from helpers.builders import CONFIG

from kareus.errors import ConfigError
from kareus.evidence.iterations import answer_iterations
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.prediction.lines import read_lines
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.rows import MeasuredIteration, read_usable_iterations
from kareus.prediction.workload_prediction import predict_time_s
from kareus.software.record import Dispatcher

HEADER = (
    "family,gpu,num_gpus,model,layers,hidden,ffn,heads,kv_heads,vocab,dp,pp,tp,cp,ep,chunks,sharding,"
    "sequence_parallel,microbatch_size,global_batch_size,seq_len,precision,recompute,overlap_note,compiled,"
    "iteration_time_s"
)
GROK = (
    "dgxc,h100-sxm5-80gb,8,Grok1-314B MoE (layers as given),2,6144,32768x8e top2,48,8,131072,2,1,4,1,2,,"
    "DDP+dist-optimizer,yes,1,16,4096,fp8,none found in recipe,TP userbuffers overlap,,1.0"
)
GPT_OSS = (
    "bridge,b200,64,GPT OSS 120B,36,2880,2880x128e top4,64,8,201088,64,1,1,1,8,n/a,DDP+dist-optimizer,,4,1280,4096,"
    "BF16,,,,6.0"
)
QWEN = (
    "modelzoo,h100-sxm5-80gb,256,Qwen3_235B_a22B,94,4096,1536x128e top8,64,4,151936,16,8,2,1,32,4,"
    'DDP+dist-optimizer,yes,1,2048,4096,bf16,"norm, act",DeepEP,,19.7'
)


def rows_of(folder: Path, *lines: str) -> list[MeasuredIteration]:
    file = folder / "rows.csv"
    file.write_text("\n".join([HEADER, *lines]) + "\n")
    rows, refused = read_usable_iterations(read_lines(file)[1], file)
    assert not refused
    return rows


def test_a_row_has_the_experts_of_its_model(tmp_path: Path) -> None:
    workloads = MeasuredWorkloads((), CONFIG)
    grok, qwen = (workloads.of(row) for row in rows_of(tmp_path, GROK, QWEN))
    assert (grok.model.name, grok.model.num_layers) == ("grok-1", 2)
    # Megatron Core divides experts as the rest of a model unless it is told otherwise; 8 GPUs have no replicas then.
    assert (grok.parallelism.ep, grok.parallelism.etp, grok.parallelism.expert_replicas) == (2, 4, 1)
    assert grok.software.dispatcher is Dispatcher.ALL_TO_ALL
    assert (qwen.model.num_layers, qwen.parallelism.split) == (94, (11, 12, 12, 12, 12, 12, 12, 11))
    assert (qwen.parallelism.ep, qwen.parallelism.etp) == (32, 1)
    assert qwen.software.dispatcher is Dispatcher.FLEX


def test_a_copy_for_a_whole_node_saves_time(tmp_path: Path) -> None:
    workloads = MeasuredWorkloads((), CONFIG)
    (one,) = rows_of(tmp_path, QWEN)
    (each,) = rows_of(tmp_path, QWEN.replace("DeepEP", "A2A"))
    assert predict_time_s(workloads.of(one)) < predict_time_s(workloads.of(each))


def test_errors_are_told_by_model_and_rows_that_cannot_be_are_refused(tmp_path: Path) -> None:
    wrong = GROK.replace(",6144,", ",6145,")
    answer = answer_iterations(rows_of(tmp_path, GROK, wrong), [], CONFIG).plain
    (row,) = answer["rows"]
    assert answer["by_expert_model"] == {"grok-1": pytest.approx(abs(row["error_pct"]))}
    assert list(answer["within_90_pct"]) == ["H100-SXM5-80GB megatron-core experts fp8"]  # not that of dense models
    ((refused,),) = ([one["reason"] for one in answer["refused"]],)
    assert refused == "hidden=6145: grok-1 has 6144; give the row another name of its model."


def test_degrees_of_experts_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, GROK.replace(",1,4,1,2,,", ",1,4,1,3,,"))
    with pytest.raises(ConfigError, match=r"parallelism\.ep=3: must divide model\.experts\.count"):
        MeasuredWorkloads((), CONFIG).of(row)


def test_the_fullest_gpu_decides(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, GROK)
    even, skewed = (
        predict_time_s(MeasuredWorkloads((f"software.expert_imbalance={factor}",), CONFIG).of(row))
        for factor in (1.0, 1.5)
    )
    assert 1.2 * even < skewed < 1.5 * even


def test_a_run_that_says_nothing_recomputes_what_its_memory_asks_for(tmp_path: Path) -> None:
    """Sixteen experts and all activations of 16,384 tokens exceed a B200; a B300 has the memory."""
    rows = rows_of(tmp_path, GPT_OSS, GPT_OSS.replace("b200", "b300"), GPT_OSS.replace("BF16,,", "BF16,none,"))
    workloads = [MeasuredWorkloads((), CONFIG).of(row) for row in rows]
    assert [one.recomputation for one in workloads] == [Recomputation.FULL, Recomputation.NONE, Recomputation.NONE]


def test_exchanges_that_a_row_hides_are_hidden_whole(tmp_path: Path) -> None:
    shown, hidden = rows_of(tmp_path, QWEN, QWEN.replace("DeepEP", "DeepEP + 1F1B EP overlap"))
    workloads = MeasuredWorkloads((), CONFIG)
    assert [workloads.of(row).software.hidden_exchange for row in (shown, hidden)] == [0, 1]


def test_sharded_weights_are_read_by_the_word_of_the_table(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, QWEN.replace("16,8,2,1,32,4,DDP+dist-optimizer", "128,1,2,1,8,1,FSDP"))
    assert MeasuredWorkloads((), CONFIG).of(row).parallelism.sharding is Sharding.FULL
