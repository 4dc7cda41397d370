"""What a run of the workflow ends with."""

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.tables import write_table
from kareus.emulate.tables import FLEET
from kareus.report import outcome


def test_a_run_of_fleets_ends_with_what_they_save(tmp_path, monkeypatch):
    """Fleet `small` is listed first; one without plans of kareus has no answer. Beside workloads one page has all."""
    folder = tmp_path / "w"
    provenance = Provenance(
        config_hash="0", testbed=TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail=""), seed=0
    )
    plan = {
        **dict.fromkeys(("pipelines", "num_microbatches"), 4),
        **dict.fromkeys(("pipeline_time_s", "static_energy_j", "dynamic_energy_j", "power_w", "lower_bound_j"), 1.0),
        **{"plan": 0, "reduction_s": 0.0, "gap": 0.0, "on_frontier": True, "points": [0]},
    }
    costs = {"sequential": (100.0, 40e6), "kareus": (90.0, 30e6)}
    fleets = []
    for name, gpus, methods in (("large", 128, costs), ("small", 64, costs), ("alone", 32, ["sequential"])):
        rows = [
            {**plan, "fleet": name, "gpus": gpus, "method": m, "time_s": costs[m][0], "energy_j": costs[m][1]}
            for m in methods
        ]
        fleets.append(folder / "emulate" / name / "fleet.parquet")
        write_table(fleets[-1], FLEET.frame(rows), FLEET, provenance)
    plan = "plan fastest (least energy within 0.3 % of the least time), in Kareus' engine"
    saved = "10 % less time and 25 % less energy than the trainer's own execution"
    costs_said = "90.00 s and 30.00 MJ an iteration instead of 100.0 s and 40.00 MJ"
    answers = [
        "w [simulated testbed, A100-SXM4-40GB]",
        f"fleet small: {plan}: {saved}: {costs_said}",
        f"fleet large: {plan}: {saved}: {costs_said}",
    ]
    page, index, planned = (
        tmp_path / place
        for place in ("w/report/fleets.html", "campaigns/mine/report/index.html", "other/plan/fastest.json")
    )
    for path in (page, index, planned):
        path.parent.mkdir(parents=True)
        path.touch()
    of_campaign = f"page of the campaign: {index}"
    assert outcome.run_lines(tmp_path, [], "mine", fleets) == [*answers, f"page  {page}", of_campaign]
    monkeypatch.setattr(outcome, "_answers", lambda *_, **__: iter(["other"]))
    assert outcome.run_lines(tmp_path, [planned], "mine", fleets) == ["other", *answers, of_campaign]
