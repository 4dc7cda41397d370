"""What the doctor says of software: versions, torch's answers, Slurm."""

from importlib import metadata

import pytest

from kareus.doctor.diagnoses import State
from kareus.doctor.probe import grid_of
from kareus.doctor.software import TRIED, slurm_finding, torch_answer, torch_findings, version_findings

CPU = {"torch": "2.13.0+cpu", "cuda": None, "nccl": None, "gpus": [], "overrides": {}, "ctas": {}, "refused": ""}
NODE = CPU | {
    "torch": "2.13.0",
    "cuda": "12.8",
    "nccl": "2.27.3",
    "gpus": ["NVIDIA H200"] * 8,
    "ctas": {"2": 2, "8": 8},
}


def versions(**known):
    def version_of(name):
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    return version_of


def states(answer):
    return {finding.check: finding.state for finding in torch_findings(answer)}


def test_versions_are_judged_by_what_was_tried():
    known = {"torch": "2.13.0+cpu", "zeus": "0.16.0", "megatron-core": "0.20.0", "mscclpp": "0.7.0"}
    found = {finding.check: finding for finding in version_findings(versions(**known))}
    assert list(found) == [tried.distribution for tried in TRIED]
    assert [found[name].state for name in ("torch", "zeus")] == [State.OK] * 2
    assert [found[name].state for name in ("megatron-core", "mscclpp")] == [State.LIMITED] * 2
    assert found["nvidia-ml-py"].state is State.BROKEN, "required and not there"
    assert found["torchtitan"].state is State.ABSENT
    assert found["torchtitan"].remedy == "pip install 'torchtitan>=0.3,<0.4'"
    (torch, *_) = version_findings(versions(torch="2.8.0"))
    assert torch.state is State.BROKEN


def test_a_machine_for_cpus_lacks_what_only_gpus_need():
    assert set(states(CPU).values()) == {State.ABSENT}


def test_a_node_whose_limits_hold_is_green():
    assert set(states(NODE).values()) == {State.OK}


@pytest.mark.parametrize(
    ("changed", "check", "state"),
    [
        ({"ctas": {"2": 2, "8": 16}}, "CTA limits", State.BROKEN),
        ({"ctas": {"2": 2, "8": 2}}, "CTA limits", State.LIMITED),
        ({"ctas": {}, "refused": "RuntimeError: NCCL error"}, "CTA limits", State.BROKEN),
        ({"ctas": {}, "gpus": ["NVIDIA H200"]}, "CTA limits", State.ABSENT),
        ({"ctas": {}, "overrides": {"NCCL_MAX_CTAS": "4"}}, "CTA limits", State.BROKEN),
        ({"gpus": []}, "CUDA", State.ABSENT),
        ({"nccl": None}, "NCCL", State.ABSENT),
        ({"failed": "ImportError: libcuda.so"}, "torch runs", State.BROKEN),
    ],
)
def test_each_answer_of_torch_means_something(changed, check, state):
    assert states(NODE | changed)[check] is state


def test_all_that_is_not_green_has_a_remedy():
    answers = (CPU, NODE | {"ctas": {"2": 4}}, {"failed": "x"}, NODE | {"overrides": {"NCCL_MIN_CTAS": "1"}})
    findings = [finding for answer in answers for finding in torch_findings(answer)]
    findings += [
        *version_findings(versions()),
        *version_findings(versions(**dict.fromkeys(["mscclpp", "triton"], "0"))),
    ]
    findings.append(slurm_finding(lambda _: None))
    assert all(finding.remedy for finding in findings if finding.state is not State.OK)


def test_torch_answers_from_another_process():
    answer = torch_answer()
    assert answer.keys() == CPU.keys()
    assert answer["torch"] == metadata.version("torch")


def test_the_grid_is_that_of_nccls_largest_kernel():
    events = [
        {"cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "args": {"grid": [8, 1, 1]}},
        {"cat": "kernel", "name": "ncclDevKernel_Broadcast", "args": {"grid": [1, 1, 1]}},
        {"cat": "kernel", "name": "elementwise_kernel", "args": {"grid": [512, 1, 1]}},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel"},
        {"name": "process_name", "ph": "M"},
    ]
    assert grid_of({"traceEvents": events}) == 8
    assert grid_of({"traceEvents": []}) == 0


def test_slurm_needs_its_plugin():
    plugin = {"snakemake-executor-plugin-slurm": "2.8.0"}
    assert slurm_finding(lambda _: "/usr/bin/sbatch", versions(**plugin)).state is State.OK
    assert slurm_finding(lambda _: "/usr/bin/sbatch", versions()).state is State.LIMITED
    assert slurm_finding(lambda _: None, versions(**plugin)).state is State.ABSENT
