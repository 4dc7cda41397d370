"""Writing a fit into a GPU's file: what is read back is what was fitted, and its errors are known."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.builders import CONFIG

from kareus.calibrate.coefficient_space import with_coefficients
from kareus.cli import main
from kareus.evidence.fit_stage import as_written, documented, software_lines
from kareus.evidence.frontiers.fit import TO_FRONTIERS, TO_TABLES, Fit
from kareus.gpu_model.coefficients import OF_SOFTWARE
from kareus.gpu_model.gpu import Gpu, Uncertainty
from kareus.gpu_model.trust import numbers_of, trust
from kareus.workload.compose import compose

FITTED = {name: prior.value * 1.0123456 for name, prior in {**TO_FRONTIERS, **TO_TABLES}.items()}


def composed(option: str, config: Path = CONFIG) -> Gpu:
    (only,) = compose((f"gpu={option}",), config)
    return only.workload.gpu


def read_back(folder: Path, text: str, with_tables: bool) -> Gpu:
    """The GPU of a file with `text`, after a fit of it was written into it."""
    shutil.copytree(CONFIG, folder / "config")
    path = folder / "config/gpu/mine.yaml"
    path.write_text(text)
    names = [*TO_FRONTIERS, *(TO_TABLES if with_tables else ())]
    gpu = with_coefficients(composed("mine", folder / "config"), {name: FITTED[name] for name in names})
    fit = Fit(gpu, np.zeros(0))
    known = Uncertainty(
        time_percent=7.5,
        energy_percent=3.0,
        time_interval_percent=1.5,
        energy_interval_percent=1.0,
        estimated_for=numbers_of(as_written(fit, with_tables=with_tables)),
    )
    path.write_text(documented(text, fit, known, with_tables=with_tables))
    take_software(fit, folder / "config")
    return composed("mine", folder / "config")


def take_software(fit: Fit, config: Path) -> None:
    """Write the fitted numbers of the software into its file, as a user does with what the fit prints."""
    (composition,) = compose(("gpu=mine",), config)
    path = config / f"software/{composition.options['software']}.yaml"
    text = path.read_text()
    for line in software_lines(fit):
        name, value = line.removeprefix("software, ").split(": ")
        text = re.sub(rf"^{name}: .*$", f"{name}: {value}", text, flags=re.MULTILINE)
    path.write_text(text)


INHERITS = "defaults: [a100-sxm4-40gb, _self_]\nname: mine\n"
SOME_OF_ITS_OWN = INHERITS + "coefficients: # mine\n  contention: 0.5 # mine\n  thermal_time_s: 2.0\n"


@pytest.mark.parametrize("with_tables", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        (CONFIG / "gpu/a100-sxm4-40gb.yaml").read_text(),
        (CONFIG / "gpu/h100-sxm5-80gb.yaml").read_text(),
        INHERITS,
        SOME_OF_ITS_OWN,
        SOME_OF_ITS_OWN + "uncertainty: null\n",
    ],
    ids=["all its own", "inherits from another GPU", "inherits", "some of its own", "unknown errors"],
)
def test_a_written_fit_reads_back_with_its_errors(tmp_path, text, with_tables):
    gpu = read_back(tmp_path, text, with_tables)
    for name in [*TO_FRONTIERS, *(TO_TABLES if with_tables else ())]:
        assert getattr(gpu.coefficients, name) == pytest.approx(FITTED[name], rel=1e-3)
    assert "within 7.5 % of time and 3.0 % of energy" in trust(gpu)


def test_a_gpus_file_gets_no_numbers_of_the_software(tmp_path):
    """They would be another software's, too: errors hold with the software's own file alone."""
    read_back(tmp_path, INHERITS, with_tables=False)
    written = yaml.safe_load((tmp_path / "config/gpu/mine.yaml").read_text())
    assert set(written["coefficients"]) == TO_FRONTIERS.keys() - set(OF_SOFTWARE)
    shutil.copytree(CONFIG / "software", tmp_path / "config/software", dirs_exist_ok=True)
    assert trust(composed("mine", tmp_path / "config")) == "errors not measured for this GPU"


def test_other_coefficients_and_comments_of_a_file_stay(tmp_path):
    gpu = read_back(tmp_path, SOME_OF_ITS_OWN, with_tables=False)
    assert gpu.coefficients.thermal_time_s == 2.0
    assert "coefficients: # mine\n" in (tmp_path / "config/gpu/mine.yaml").read_text()


def test_coefficients_in_one_line_are_refused_before_the_fit(tmp_path, capsys):
    shutil.copytree(CONFIG, tmp_path / "config")
    path = tmp_path / "config/gpu/mine.yaml"
    path.write_text(INHERITS + "coefficients: {contention: 0.5}\n")
    command = ["fit", "--gpu", "mine", "--reference", "nowhere.csv", "--config-dir", str(tmp_path / "config")]
    assert main([*command, "--output", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"kareus fit: {path}: coefficients: written in one line; write each on an indented line of its own.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--software", "megatron-core", "--measurements", "store"), "give their file as --reference"),
        (
            ("--software", "megatron-core", "--reference", "rows.csv", "--tables", "tables.csv"),
            "give their file as --reference",
        ),
        (("--reference", "gemm.csv", "--tables", "tables.csv"), "leave it out with measured kernels"),
    ],
)
def test_data_of_another_kind_of_fit_is_refused(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("gemm.csv").write_text("software,gpu,m,n,k,dtype,time_s\nx,a100-sxm4-80gb,64,64,64,bfloat16,1e-5\n")
    assert main(["fit", *arguments, "--config-dir", str(CONFIG)]) == 2
    assert message in capsys.readouterr().err
