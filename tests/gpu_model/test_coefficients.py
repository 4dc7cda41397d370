"""Declarations of the coefficients: ranges that are refused, and priors that agree with them."""

import ast
import dataclasses
import inspect

import pytest
from helpers.builders import a100

from kareus.errors import ConfigError
from kareus.gpu_model.coefficients import COEFFICIENTS, SHARES, GpuCoefficients


def changed(name, value):
    return dataclasses.replace(a100().coefficients, **{name: value})


@pytest.mark.parametrize(("name", "known"), COEFFICIENTS.items(), ids=list(COEFFICIENTS))
def test_values_beyond_the_declared_range_are_refused(name, known):
    for allowed in (float(known.least), float(known.most)):
        assert getattr(changed(name, allowed), name) == allowed
    for refused in (known.least - 1e-9, known.most * 1.01):
        with pytest.raises(ConfigError, match=f"^{name}="):
            changed(name, refused)


@pytest.mark.parametrize(("name", "known"), COEFFICIENTS.items(), ids=list(COEFFICIENTS))
def test_priors_are_within_the_declared_range(name, known):
    assert known.least <= known.prior.median <= known.most
    assert known.prior.origin
    if known.fit is not None:
        assert known.least <= known.fit.lower < known.fit.value < known.fit.upper <= known.most


def test_shares_are_those_that_cannot_exceed_one():
    assert {name for name, known in COEFFICIENTS.items() if known.most == 1} == SHARES


def test_every_coefficient_has_a_meaning():
    """A string after its field, from which the reference page is made."""
    (record,) = ast.parse(inspect.getsource(GpuCoefficients)).body
    assert isinstance(record, ast.ClassDef)
    following = dict(zip(record.body, record.body[1:], strict=False))
    fields = [node for node in record.body if isinstance(node, ast.AnnAssign)]
    assert [node.target.id for node in fields] == [field.name for field in dataclasses.fields(GpuCoefficients)]
    assert all(isinstance(following[node].value, ast.Constant) for node in fields)
