"""What each node gets."""

import numpy as np
import pytest
from nodectl_example.equal_watts import METHOD, Params

from cluster_agent.budget.sharers.view import Job, View


@pytest.mark.parametrize(("idle", "expected"), [("mop", [250_000, 250_000, 100_000]), ("share", [200_000] * 3)])
def test_nodes_with_a_job_get_the_same_watts(idle, expected):
    tdp_mw, mop_mw = np.full(3, 400_000), np.full(3, 100_000)
    view = View.of(["n1", "n2", "n3"], tdp_mw, mop_mw, [Job("7", ["n1", "n2"])])
    shares = METHOD.compose(Params(idle=idle))(view, 600_000)
    assert shares.caps_mw.tolist() == expected
    assert "all that work get the same watts" in shares.why(view, "n1").words
