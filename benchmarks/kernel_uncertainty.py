"""How far off kernels are predicted on GPUs that were fitted to them: errors left out and bootstrap intervals.

    python benchmarks/kernel_uncertainty.py            # prints them for the coefficients in config/gpu
    python benchmarks/kernel_uncertainty.py --write    # and puts them into the files

`kareus fit` writes them, too; this is for coefficients that were changed otherwise. It takes some seconds a GPU.
"""

import argparse
from dataclasses import replace

import numpy as np

from kareus.artifacts.shipped import config_folder
from kareus.calibrate.gpu_file import with_kernel_uncertainty
from kareus.evidence import shipped_files
from kareus.evidence.kernels.rows import KernelKind, Kernels, kind_of, read_kernels
from kareus.evidence.kernels.uncertainty import kernel_uncertainty
from kareus.gpu_model.trust import trust
from kareus.prediction.lines import read_lines
from kareus.workload.resolve import resolve_accepted

CONFIG_DIR = config_folder()


def main() -> None:
    """Print a line for each GPU that has measured kernels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put them into the GPUs' files")
    arguments = parser.parse_args()
    files = shipped_kernels()
    for option in sorted({str(name) for rows in files.values() for name in np.unique(rows.gpu)}):
        (workload,) = resolve_accepted([f"gpu={option}"]).values()
        uncertainty = kernel_uncertainty(files, workload.gpu, option, workload)
        print(f"{option}: {trust(replace(workload.gpu, kernel_uncertainty=uncertainty))}")
        if arguments.write:
            path = CONFIG_DIR / "gpu" / f"{option}.yaml"
            path.write_text(with_kernel_uncertainty(path.read_text(encoding="utf-8"), uncertainty), encoding="utf-8")


def shipped_kernels() -> dict[KernelKind, Kernels]:
    """Return the measured kernels that ship, by kind."""
    kernels = {}
    for path in shipped_files().values():
        header, lines = read_lines(path)
        kind = kind_of(header)
        if kind is not None:
            kernels[kind] = read_kernels(kind, lines, path)
    return kernels


if __name__ == "__main__":
    main()
