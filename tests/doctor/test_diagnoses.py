"""States of findings, their order and their exit codes."""

from kareus.doctor.diagnoses import EXIT_CODES, Diagnosis, State, worst


def test_the_worst_finding_decides():
    found = [Diagnosis(check="a", state=state, result="") for state in (State.OK, State.BROKEN, State.ABSENT)]
    assert worst(found) is State.BROKEN
    assert worst([]) is State.OK


def test_exit_codes_rise_with_severity_and_leave_those_of_all_commands():
    codes = [EXIT_CODES[state] for state in sorted(State)]
    assert codes == sorted(codes)
    assert not {1, 2, 130} & set(codes)
