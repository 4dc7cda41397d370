"""Power of nodes: rows that cannot be used are refused, others stay."""

import pytest
from helpers.builders import CONFIG

from kareus.errors import ArtifactError, ConfigError
from kareus.evidence.node_power import answer_power
from kareus.prediction.lines import read_lines

HEADER = "kind,gpu,n_gpus,model,task,tp,pp,cp,mbs,gbs,seq,precision,iteration_s,node_power_w_train"
LINE = "AC node,H100-SXM5-80GB,512,GPT3-175B,pretrain,4,8,1,2,2048,2048,fp8,10.6384,6902.3"


def _lines(tmp_path, *rows, header=HEADER):
    path = tmp_path / "power.csv"
    path.write_text("\n".join([header, *rows]))
    return read_lines(path)[1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("fp8", "fp4", "precision='fp4' is not known; allowed: bf16, fp8."),
        ("6902.3", "0.0", "node_power_w_train='0.0': must be a number above 0."),
        (",4,8,1,2,", ",4,8,,2,", "cp='': must be a number above 0."),
    ],
)
def test_a_run_that_cannot_be_used_is_refused(tmp_path, old, new, said):
    answer = answer_power(_lines(tmp_path, LINE.replace(old, new), LINE), (), CONFIG)
    assert [row.line for row in answer.rows] == [3]
    (refused,) = answer.refused
    assert refused.line == 2
    assert refused.reason.endswith(f"line 2: {said}")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",512,", ",16,", "n_gpus=16: must be a multiple of tp * pp * cp = 32."),
        (",512,", ",500,", "n_gpus=500: must be a multiple of tp * pp * cp = 32."),
        (",2,2048,2048", ",2,2050,2048", "gbs=2050: must be a multiple of mbs times 16 replicas = 32."),
        (",2,2048,2048", ",2,16,2048", "gbs=16: must be a multiple of mbs times 16 replicas = 32."),
    ],
)
def test_a_run_that_does_not_divide_is_refused(tmp_path, old, new, said):
    answer = answer_power(_lines(tmp_path, LINE.replace(old, new), LINE), (), CONFIG)
    assert [row.line for row in answer.rows] == [3]
    assert [(refused.line, refused.reason) for refused in answer.refused] == [(2, said)]


def test_a_file_without_a_usable_run_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="line 2: precision='fp4'"):
        answer_power(_lines(tmp_path, LINE.replace("fp8", "fp4")), (), CONFIG)


def test_a_column_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ArtifactError, match="line 2: no column precision; complete the file"):
        answer_power(_lines(tmp_path, LINE, header=HEADER.replace("precision", "format")), (), CONFIG)


def test_chunks_of_a_row_go_before_those_of_its_model(tmp_path):
    (own,) = answer_power(_lines(tmp_path, LINE), (), CONFIG).rows
    (single,) = answer_power(_lines(tmp_path, f"{LINE},1", header=f"{HEADER},chunks"), (), CONFIG).rows
    waiting_s = [
        next(component.time_s for component in one.predicted.components if component.name == "waiting")
        for one in (own, single)
    ]
    assert waiting_s[1] > 1.5 * waiting_s[0]
