"""The chains that the errata of section 4 are tried on."""

import pytest

from helpers.control_chain import Chain, make_chain, make_linear_quadratic


@pytest.fixture(scope="module")
def chain() -> Chain:
    return make_chain()


@pytest.fixture(scope="module")
def linear_quadratic() -> Chain:
    return make_linear_quadratic()
