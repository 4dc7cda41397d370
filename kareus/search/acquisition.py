"""Multi-pass candidate selection (paper, section 4.3.2 and Algorithm 1).

Three passes exploit by hypervolume improvement, each in its own plane of (time, energy): total, dynamic and
static energy. The fourth explores where the ensembles disagree most. Energies of a plane follow from the two
surrogates: total = dynamic + static power x time, static = static power x time.
"""

import numpy as np
from numpy.typing import NDArray

from kareus.pareto import Points, hypervolume_improvement
from kareus.search.config import PaperSearch
from kareus.search.dataset import Dataset
from kareus.search.problem import Chosen, CostPrediction


def pass_sizes(config: PaperSearch, batch: int) -> dict[str, int]:
    """Return the sizes of the exploitation passes: floors of their shares; what remains of the batch is exploration."""
    shares = {
        "total": config.total_energy_share,
        "dynamic": config.dynamic_energy_share,
        "static": config.static_energy_share,
    }
    # A share such as 0.2 of 15 is 3, not 2.9999999999999996.
    return {name: int(np.floor(round(share * batch, 9))) for name, share in shares.items()}


def select(
    data: Dataset, prediction: CostPrediction, uncertainty: NDArray[np.float64], config: PaperSearch, batch: int
) -> list[Chosen]:
    """Choose the next batch among the candidates that `prediction` and `uncertainty` describe.

    Each exploitation pass ranks all candidates, as the algorithm is written, so passes may agree, and each of them is
    credited; what they leave of the batch goes to the uncertainty pass. Ties go to the lower predicted energy of the
    pass, then to the earlier candidate.
    """
    batch = min(batch, len(prediction.time_s))
    taken = np.zeros(len(prediction.time_s), dtype=bool)
    passes = []
    for name, size in pass_sizes(config, batch).items():
        measured = plane(name, data.time_s, data.dynamic_energy_j, data.static_power_w)
        predicted = plane(name, prediction.time_s, prediction.dynamic_energy_j, data.static_power_w)
        score = normalised_improvement(predicted, measured, config.reference_margin)
        # Largest improvement first; ties by the energy of the plane, then by number (the last key of lexsort leads).
        energy_j = predicted[:, 1]
        ranked = np.lexsort((np.arange(len(score)), energy_j, -score))[:size]
        passes.append(Chosen(name, ranked))
        taken[ranked] = True
    ranked = np.lexsort((np.arange(len(taken)), plane_energy(prediction, data.static_power_w), -uncertainty))
    passes.append(Chosen("uncertainty", ranked[~taken[ranked]][: batch - int(taken.sum())]))
    return passes


def plane(
    name: str, time_s: NDArray[np.float64], dynamic_energy_j: NDArray[np.float64], static_power_w: float
) -> Points:
    """Return the points of the plane of pass `name`: time and its energy, shape (n, 2)."""
    energies = {
        "total": dynamic_energy_j + static_power_w * time_s,
        "dynamic": dynamic_energy_j,
        "static": static_power_w * time_s,
    }
    return np.column_stack((time_s, energies[name]))


def plane_energy(prediction: CostPrediction, static_power_w: float) -> NDArray[np.float64]:
    """Return the predicted total energy, which breaks the ties of the uncertainty pass."""
    return plane("total", prediction.time_s, prediction.dynamic_energy_j, static_power_w)[:, 1]


def normalised_improvement(predicted: Points, measured: Points, margin: float) -> NDArray[np.float64]:
    """Return the hypervolume improvement of each prediction over the measured front.

    Both axes are divided by their worst measurement; the reference point is then `margin` on both axes (paper,
    appendix on hyperparameters).
    """
    scale = measured.max(axis=0)
    return hypervolume_improvement(predicted / scale, measured / scale, np.full(2, margin))
