"""The command `profile`: which operator graph it refuses to measure."""

from builders import CONFIG, graphs

from kareus.artifacts.provenance import Provenance
from kareus.cli import main
from kareus.partition.write import write_graphs
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import slice_text


def test_the_operator_graph_of_another_workload_is_not_measured(tmp_path, capsys):
    (workload,) = resolve_accepted([], CONFIG).values()
    (tmp_path / "profile.yaml").write_text(slice_text(workload, "profile"))
    write_graphs(tmp_path / "segments.parquet", graphs(), Provenance(config_hash="test", subject="other"))
    outputs = [f"--{name}={tmp_path / name}.parquet" for name in ("segments", "components", "instructions")]
    store = tmp_path / "store"
    assert main(["profile", f"--config={tmp_path / 'profile.yaml'}", f"--store={store}", *outputs]) == 2
    line = capsys.readouterr().err
    assert "segments.parquet: made for another workload (subject other, the configuration has " in line
    assert line.count("\n") == 1
    assert not store.exists()
