"""What a machine lacks for a training is said before ranks are started."""

from pathlib import Path

import pytest
from helpers.trainings import here, tiny_workload

from kareus.artifacts.configuration import to_yaml
from kareus.cli import main
from kareus.errors import EngineError
from kareus.launch import machine
from kareus.launch.machine import available_bytes, check_machine, least_bytes
from kareus.training import stage

GIB = 2**30


def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workload of eight ranks, none of which may be started."""
    started = pytest.fail
    monkeypatch.setattr(stage, "launch", lambda arguments, ranks: started("ranks were started"))
    path = tmp_path / "workload.yaml"
    path.write_text(to_yaml(tiny_workload(pp=2, tp=2, cp=1, dp=2)))
    return path


@pytest.mark.parametrize(
    ("communicator", "said"),
    [
        ("nccl", "--communicator nccl: needs a GPU for each rank, and there are 3 here for 8; start ranks on more"),
        ("mscclpp", "communicator 'mscclpp': cannot be imported (not installed); build it"),
    ],
)
def test_a_missing_gpu_or_library_is_reported_before_start(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    communicator: str,
    said: str,
) -> None:
    path = asked(tmp_path, monkeypatch)
    monkeypatch.setattr(machine, "visible_gpus", lambda: 3)
    arguments = ["--iterations", "1", "--output", str(tmp_path / "run"), "--communicator", communicator]
    assert main(["train", "--workload", str(path), *arguments]) == 2
    refused = capsys.readouterr().err
    assert refused.startswith(f"kareus train: {said}")
    assert refused.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_too_many_ranks_for_the_memory_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = asked(tmp_path, monkeypatch)
    monkeypatch.setattr(machine, "available_bytes", lambda: GIB)
    assert here("--workload", path, "--iterations", 1, "--output", tmp_path / "run") == 2
    assert capsys.readouterr().err == (
        "kareus train: --communicator gloo: 8 ranks need at least 1.6 GiB of memory for weights, gradients and "
        "optimizer, this machine has 1.0 free; train a smaller model, or start ranks on more machines with torchrun.\n"
    )


def test_the_least_memory_is_sixteen_bytes_per_weight_and_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = tiny_workload()
    model = alone.model
    query, key_value = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    block = model.hidden_size * (2 * query + 2 * key_value + 3 * model.intermediate_size + 2)
    tables = (1 if model.tie_embeddings else 2) * model.vocab_size * model.hidden_size
    weights = model.num_layers * block + tables + model.hidden_size
    assert least_bytes(alone) - machine.PROCESS_BYTES == 16 * weights
    check_machine(alone, "gloo")
    monkeypatch.setattr(machine, "available_bytes", lambda *_: least_bytes(alone) - 1)
    with pytest.raises(EngineError, match="1 ranks need at least"):
        check_machine(alone, "gloo")


def test_page_cache_of_a_container_is_not_counted_as_used(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {64 * 2**20} kB\n")
    (group / "memory.max").write_text(f"{8 * GIB}\n")
    (group / "memory.current").write_text(f"{7 * GIB}\n")
    (group / "memory.stat").write_text(
        f"anon {2 * GIB}\nfile {5 * GIB}\nshmem {GIB}\ninactive_file {3 * GIB}\nactive_file {GIB}\nunevictable {GIB}\n"
    )
    assert available_bytes(tmp_path) == (8 - 7 + 3 + 1) * GIB


@pytest.mark.parametrize(("limit", "expected"), [("max", 5), (f"{4 * GIB}", 3), (None, 5)])
def test_memory_is_what_the_machine_and_the_container_leave(tmp_path: Path, limit: str | None, expected: int) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        f"MemTotal: {8 * 2**20} kB\nMemAvailable: {4 * 2**20} kB\nSwapFree: {2**20} kB\nHugePages_Free: 0\n"
    )
    if limit is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
        (tmp_path / "sys/fs/cgroup/memory.current").write_text(f"{GIB}\n")
    assert available_bytes(tmp_path) == expected * GIB
    assert available_bytes(tmp_path / "no such root") is None
