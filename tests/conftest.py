"""Options and fixtures every test may use."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes is no test: the machine may have other work.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scale", type=float, default=1.0, help="multiply the number of simulated states and examples")
    parser.addoption("--seed", type=int, default=None, help="replay one seed of a simulation")


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--scale"))
