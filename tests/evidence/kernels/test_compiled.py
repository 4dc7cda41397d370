"""What DeepGEMM compiled before a GEMM of vLLM's sweep: by rules of the sweep, and by the readings themselves."""

import numpy as np
import pytest

from kareus.evidence.kernels.compiled import HEIGHTS, SIDES, follows_blocks, follows_compilation
from kareus.evidence.kernels.rows import kind_of, read_kernels
from kareus.evidence.shipped import shipped_files
from kareus.prediction.lines import read_lines


def compiled(gpu, m, n, k):
    return bool(follows_compilation(gpu, np.array([m]), np.array([n]), np.array([k]))[0])


@pytest.mark.parametrize("gpu", ["h200", "b200"])
def test_the_first_height_compiles_every_kernel(gpu):
    assert HEIGHTS[0] == 32768
    assert all(compiled(gpu, 32768, n, k) for n in (128, 4096, 12288) for k in (64, 4096, 16384))


@pytest.mark.parametrize("gpu", ["h200", "b200"])
def test_most_kernels_are_known_when_heights_repeat(gpu):
    sides = [side for side in SIDES if 256 <= side <= 12288]
    late = [compiled(gpu, 1280, n, k) for n in sides for k in sides]
    assert 0.1 < np.mean(late) < 0.6


def test_blocks_of_scales_need_wide_weights_and_even_heights():
    shapes = [np.array(column) for column in zip((1024, 64, 512), (1024, 512, 32), (1025, 512, 512), strict=True)]
    assert follows_blocks("h200", *shapes).tolist() == [False, False, True]
    assert follows_blocks("b200", *shapes).tolist() == [False, False, False]
    assert not follows_blocks("h100-sxm5-80gb", *shapes).any()
    assert not compiled("h200", 1024, 512, 65536)


@pytest.mark.parametrize(("gpu", "idle_w", "limit_w", "most"), [("h200", 133, 700, 0.1), ("b200", 255, 1000, 0.35)])
def test_readings_are_low_after_compilations_alone(gpu, idle_w, limit_w, most):
    """Of short runs at the power limit: right after a pause a reading shows no more of it than the run's own length."""
    path = shipped_files()["kernel_gemm"]
    header, lines = read_lines(path)
    rows = read_kernels(kind_of(header), [line for line in lines if line.text("gpu") == gpu], path)
    run_s, low = 18_000 * rows.time_s, rows.power_w < idle_w + 0.4 * (limit_w - idle_w)
    sizes = (rows.sizes["m"], rows.sizes["n"], rows.sizes["k"])
    short = (rows.libraries == "vllm") & rows.sustained & (run_s > 0.2) & (run_s < 0.4) & follows_blocks(gpu, *sizes)
    after = follows_compilation(gpu, *sizes)
    assert low[short & after].mean() > 0.75
    assert low[short & ~after].mean() < most
