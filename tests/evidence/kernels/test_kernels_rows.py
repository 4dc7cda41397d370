"""Reading measured kernels: a file comes back as columns, and what cannot be used is named with its place."""

import gzip

import numpy as np
import pytest

from kareus.errors import ArtifactError
from kareus.evidence.kernels.rows import KernelKind, kind_of, read_kernels, read_usable_kernels
from kareus.prediction.lines import read_lines

GEMM = """\
gpu,dtype,m,n,k,time_s,power_w,power_limit_w,software,source
h200,bfloat16,1024,512,256,0.000004,,,VLLM 0.24.0,x
h200,fp8,1024,512,256,0.000014,650.5,700,VLLM 0.22.0,x
"""
ATTENTION = """\
gpu,batch,seq_len,heads,kv_heads,head_dim,window,time_s,power_w,power_limit_w,software
b200,1,1024,8,2,128,0,0.00002,505,1000,TRTLLM 1.3.0
"""
NCCL = """\
gpu,collective,num_gpus,message_elements,message_bytes,time_s,software
h200,all_gather,8,512,1024,0.00001,NCCL 2.29
"""


EXPERTS = """\
framework,version,device,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,\
distribution,latency,power,power_limit
VLLM,0.22.0,NVIDIA H200,fp8_block,3072.0,2048,512,8,256,1,32,balanced,0.205774,398.4,700.0
VLLM,0.22.0,NVIDIA H200,bfloat16,3072,2048,512,8,256,4,1,power_law_1.2,0.4,,
"""


def kernels(path, text):
    path.write_text(text)
    header, lines = read_lines(path)
    return read_kernels(kind_of(header), lines, path)


def test_experts_are_read_in_the_columns_of_their_source(tmp_path):
    rows = kernels(tmp_path / "k.csv", EXPERTS)
    assert rows.kind is KernelKind.EXPERTS
    assert rows.gpu.tolist() == ["h200", "h200"]
    assert rows.time_s.tolist() == pytest.approx([2.05774e-4, 4e-4])
    assert rows.sizes["num_tokens"].tolist() == [3072, 3072]
    assert rows.routing.tolist() == ["balanced", "power_law_1.2"]
    assert rows.groups.tolist() == ["h200 fp8_block VLLM 0.22.0 sustained", "h200 bfloat16 VLLM 0.22.0 burst"]


@pytest.mark.parametrize(
    ("own", "other", "complaint"),
    [
        ("fp8_block", "int4", "line 2: dtype=.int4. is not known; allowed: bfloat16, fp8, fp8_block."),
        ("256,1,32,", "256,1,33,", "moe_ep_size=33: must divide num_experts .256."),
        ("256,4,1,", "256,3,1,", "moe_tp_size=3: must divide inter_size .512."),
        ("balanced", "even", "routing='even' is not known; allowed: balanced, power_law_1.01, power_law_1.2."),
        ("0.205774", "-1", "latency='-1': must be a number above 0."),
    ],
)
def test_experts_that_cannot_be_are_refused(tmp_path, own, other, complaint):
    with pytest.raises(ArtifactError, match=complaint):
        kernels(tmp_path / "k.csv", EXPERTS.replace(own, other))


def test_gemms_read_back_with_and_without_power(tmp_path):
    rows = kernels(tmp_path / "k.csv", GEMM)
    assert rows.kind is KernelKind.GEMM
    assert rows.sizes["m"].tolist() == [1024, 1024]
    assert rows.sustained.tolist() == [False, True]
    assert rows.power_w[1] == 650.5
    assert rows.libraries.tolist() == ["vllm", "vllm"]
    assert rows.groups.tolist() == ["h200 bfloat16 VLLM 0.24.0 burst", "h200 fp8 VLLM 0.22.0 sustained"]


def test_attention_reads_back_with_its_window(tmp_path):
    rows = kernels(tmp_path / "k.csv", ATTENTION)
    assert rows.kind is KernelKind.ATTENTION
    assert (rows.sizes["window"].tolist(), rows.number_format.tolist()) == ([0], ["bfloat16"])


def test_collectives_read_back_with_their_kind(tmp_path):
    rows = kernels(tmp_path / "k.csv", NCCL)
    assert (rows.kind, rows.collective.tolist()) == (KernelKind.COLLECTIVE, ["all_gather"])
    assert np.isnan(rows.power_w).all()


def test_a_compressed_file_reads_as_the_file(tmp_path):
    path = tmp_path / "k.csv.gz"
    path.write_bytes(gzip.compress(GEMM.encode()))
    header, lines = read_lines(path)
    assert len(read_kernels(kind_of(header), lines, path)) == 2


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (GEMM, "0.000014", "-1", "line 3: time_s='-1': must be a number above 0."),
        (GEMM, "0.000014", "", "line 3: time_s='': must be a number above 0."),
        (GEMM, "650.5", "hot", "line 3: power_w='hot': must be a number above 0."),
        (GEMM, "fp8,1024", "fp8,12.5", "line 3: m='12.5': must be a number above 0."),
        (GEMM, "h200,fp8", "h200,fp4", "line 3: dtype='fp4' is not known; allowed: bfloat16, fp8."),
        (ATTENTION, "128,0,", "128,-3,", "line 2: window='-3': must be a whole number, 0 or more."),
        (NCCL, "all_gather", "gossip", "line 2: collective='gossip' is not known; allowed: all_reduce, all_gather,"),
        (NCCL, ",8,512,1024", ",0,512,1024", "line 2: num_gpus='0': must be a number above 0."),
        (NCCL, ",8,512,1024", ",1,512,1024", "line 2: num_gpus='1': must be from 2 to "),
    ],
)
def test_a_bad_value_is_named_with_its_place(tmp_path, text, old, new, said):
    assert old in text
    with pytest.raises(ArtifactError) as raised:
        kernels(tmp_path / "k.csv", text.replace(old, new))
    assert str(raised.value).startswith(f"{tmp_path / 'k.csv'}: {said}")


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (GEMM, "h200,fp8", "h200,nvfp4", "dtype='nvfp4' is not known; allowed: bfloat16, fp8."),
        (GEMM, "650.5", "-5", "power_w='-5': must be a number above 0."),
        (NCCL + NCCL.splitlines()[1], "512,1024,0.00001,NCCL 2.29\nh", "512,x,0.00001,N\nh", "message_bytes='x': must"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused(tmp_path, text, old, new, said):
    path = tmp_path / "k.csv"
    path.write_text(text.replace(old, new, 1))
    header, lines = read_lines(path)
    rows, (refused,) = read_usable_kernels(kind_of(header), lines, path)
    assert sorted([*rows.lines.tolist(), refused.line]) == [2, 3]
    assert f"{path}: line {refused.line}: {said}" in refused.reason
    with pytest.raises(ArtifactError, match=f"line {refused.line}: "):
        read_usable_kernels(kind_of(header), [line for line in lines if line.number == refused.line], path)


def test_a_missing_column_is_an_error_of_the_file(tmp_path):
    path = tmp_path / "k.csv"
    path.write_text(GEMM.replace("dtype", "format"))
    header, lines = read_lines(path)
    with pytest.raises(ArtifactError, match="line 2: no column dtype; complete the file"):
        read_usable_kernels(kind_of(header), lines, path)


@pytest.mark.parametrize("power_w", ["0", "0.0", "0.000000", ""])
def test_power_of_0_was_not_read(tmp_path, power_w):
    rows = kernels(tmp_path / "k.csv", GEMM.replace("650.5", power_w))
    assert rows.sustained.tolist() == [False, False]


def test_messages_may_have_a_tebibyte(tmp_path):
    assert kernels(tmp_path / "k.csv", NCCL.replace("1024", str(2**40))).sizes["message_bytes"].tolist() == [2**40]
    with pytest.raises(ArtifactError, match="message_bytes='1099511627777': must be from 1 to "):
        kernels(tmp_path / "k.csv", NCCL.replace("1024", str(2**40 + 1)))


def test_a_file_of_a_header_alone_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="header and no rows"):
        kernels(tmp_path / "k.csv", GEMM.split("\n", maxsplit=1)[0] + "\n")


def test_a_broken_archive_is_refused(tmp_path):
    path = tmp_path / "k.csv.gz"
    path.write_bytes(gzip.compress(GEMM.encode())[:60])
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_lines(path)
