"""Peers: published optimisers on the same candidates, with the initial design and the budget of `paper`.

Both think in a cube: frequency, SM count and launch operator, each scaled to [0, 1]; candidates are a grid in it.
NSGA-II's offspring become the nearest candidates that are not measured yet; qLogNEHVI takes its batches from those
candidates themselves, greedily among the `SHORTLIST` that are best alone. Objectives are time and dynamic energy,
which the score is in.
"""

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kareus.pareto import Points
from kareus.profile.measure import Measurement
from kareus.search.config import PaperSearch
from kareus.search.dataset import Indices
from kareus.search.problem import SearchProblem
from kareus.search.rounds import Trial
from kareus.search.strategy import sizes_of

Cube = NDArray[np.float64]
"""Places in the cube, shape (n, 3)."""
Evaluate = Callable[[Indices], Points]
"""Measures candidates; returns their (time, dynamic energy)."""

REFERENCE_MARGIN = 1.1
MONTE_CARLO_SAMPLES = 32
SHORTLIST = 64
"""Candidates among which a batch of qLogNEHVI is chosen; all of them would take minutes a round."""


def search_with_peer(
    peer: str, problem: SearchProblem, measure: Callable[[int], Measurement], static_power_w: float
) -> list[Trial]:
    """Search with the peer of a name in `PEERS`; returns trials as `run_search` does."""
    trials: list[Trial] = []

    def evaluate(candidates: Indices) -> Points:
        round_ = trials[-1].round + 1 if trials else 0
        measured = [measure(candidate) for candidate in candidates.tolist()]
        trials.extend(
            Trial(
                candidate=candidate,
                round=round_,
                chosen_by=(peer,),
                predicted_time_s=None,
                predicted_dynamic_energy_j=None,
                measurement=measurement,
            )
            for candidate, measurement in zip(candidates.tolist(), measured, strict=True)
        )
        return np.array([(m.time_s, m.energy_j - static_power_w * m.time_s) for m in measured])

    PEERS[peer](problem, evaluate)
    return trials


def nsga2(problem: SearchProblem, evaluate: Evaluate) -> None:
    """NSGA-II (pymoo) from the initial design on, in batches of offspring; operators as pymoo advises for integers."""
    from pymoo.algorithms.moo.nsga2 import NSGA2  # noqa: PLC0415 - slow to import
    from pymoo.core.problem import Problem  # noqa: PLC0415
    from pymoo.operators.crossover.sbx import SBX  # noqa: PLC0415
    from pymoo.operators.mutation.pm import PM  # noqa: PLC0415

    cube = cube_of(problem)
    initial, *batches = batch_sizes(problem)
    algorithm = NSGA2(
        pop_size=initial,
        n_offsprings=batches[0],
        sampling=cube[first_candidates(problem)],
        crossover=SBX(prob=1.0, eta=3.0),
        mutation=PM(prob=1.0, eta=3.0),
    )
    seed = int(problem.generator.integers(2**31))
    algorithm.setup(Problem(n_var=3, n_obj=2, xl=0.0, xu=1.0), termination=("n_gen", 1 + len(batches)), seed=seed)
    measured = np.zeros(len(cube), dtype=bool)
    for size in (initial, *batches):
        offspring = algorithm.ask()
        candidates = nearest_unmeasured(cube, offspring.get("X")[:size], measured)
        measured[candidates] = True
        offspring = offspring[: len(candidates)]
        offspring.set("X", cube[candidates])
        offspring.set("F", evaluate(candidates))
        algorithm.tell(infills=offspring)
        if measured.all():
            break


def qlognehvi(problem: SearchProblem, evaluate: Evaluate) -> None:
    """Gaussian processes and the logarithm of noisy expected hypervolume improvement (BoTorch)."""
    import torch  # noqa: PLC0415 - slow to import

    torch.set_num_threads(1)
    torch.manual_seed(int(problem.generator.integers(2**31)))
    cube = cube_of(problem)
    batches = batch_sizes(problem)[1:]
    measured = first_candidates(problem)
    costs = evaluate(measured)
    for size in batches:
        offered = np.setdiff1d(np.arange(len(cube)), measured)
        if not len(offered):
            break
        chosen = offered[_best_batch(cube[measured], costs, cube[offered], min(size, len(offered)))]
        costs = np.concatenate((costs, evaluate(chosen)))
        measured = np.concatenate((measured, chosen))


def _best_batch(train: Cube, costs: Points, offered: Cube, size: int) -> Indices:
    """Positions in `offered` of the batch that the acquisition function takes greedily, one after the other."""
    import torch  # noqa: PLC0415 - slow to import
    from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement  # noqa: PLC0415
    from botorch.fit import fit_gpytorch_mll  # noqa: PLC0415
    from botorch.models import SingleTaskGP  # noqa: PLC0415
    from botorch.optim import optimize_acqf_discrete  # noqa: PLC0415
    from botorch.sampling import SobolQMCNormalSampler  # noqa: PLC0415
    from gpytorch.mlls import ExactMarginalLogLikelihood  # noqa: PLC0415

    inputs, gains = torch.from_numpy(train), torch.from_numpy(-costs / costs.max(axis=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about jitter and optimisers that stop early: the fits are used as they are
        model = SingleTaskGP(inputs, gains)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        acquisition = qLogNoisyExpectedHypervolumeImprovement(
            model=model,
            ref_point=[-REFERENCE_MARGIN, -REFERENCE_MARGIN],
            X_baseline=inputs,
            sampler=SobolQMCNormalSampler(torch.Size([MONTE_CARLO_SAMPLES])),
            prune_baseline=True,
        )
        choices = torch.from_numpy(offered)
        with torch.no_grad():
            alone = acquisition(choices.unsqueeze(-2))
        shortlist = alone.argsort(descending=True, stable=True)[: max(SHORTLIST, size)]
        chosen, _ = optimize_acqf_discrete(acquisition, size, choices[shortlist], unique=True)
    return np.array([int(np.abs(offered - place).sum(axis=1).argmin()) for place in chosen.numpy()])


PEERS: dict[str, Callable[[SearchProblem, Evaluate], None]] = {"nsga2": nsga2, "qlognehvi": qlognehvi}


def cube_of(problem: SearchProblem) -> Cube:
    """Candidates in the cube; a feature of one value is 0."""
    features = problem.features.matrix
    lowest, span = features.min(axis=0), np.ptp(features, axis=0)
    return (features - lowest) / np.where(span > 0, span, 1.0)


def nearest_unmeasured(cube: Cube, places: Cube, measured: NDArray[np.bool_]) -> Indices:
    """The nearest candidate to each place that is neither measured nor taken by a place before; shape (at most n,)."""
    free = ~measured
    chosen = []
    for place in places[: int(free.sum())]:
        distances = np.where(free, ((cube - place) ** 2).sum(axis=1), np.inf)
        chosen.append(int(distances.argmin()))
        free[chosen[-1]] = False
    return np.array(chosen, dtype=np.int64)


def first_candidates(problem: SearchProblem) -> Indices:
    """A random initial design."""
    initial = min(batch_sizes(problem)[0], len(problem.features))
    return problem.generator.choice(len(problem.features), size=initial, replace=False)


def batch_sizes(problem: SearchProblem) -> list[int]:
    """Sizes of the rounds of `paper`: the initial design, then its batches."""
    assert isinstance(problem.config, PaperSearch)
    sizes = sizes_of(len(problem.partition.operators), problem.config)
    return [sizes.initial, *[sizes.batch] * sizes.max_rounds]
