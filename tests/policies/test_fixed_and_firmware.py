"""The references that savings are counted against: one fixed clock, and the board left to itself."""

import dataclasses

import msgspec
import numpy as np
import pytest

from nodectl.config import Caps, Config, PolicyChoice
from nodectl.decide.decider import Decider
from nodectl.policies import fixed, registry
from nodectl.policies.fixed import FixedCpuParams, FixedGpuParams
from pmu.layout import Layout
from pmu.readings import Quality, Sample
from tests.nodectl.small_node import CLOCKS_MHZ, layout, sample

MAX_KHZ = 2_800_000
REFERENCES = [("fixed-cpu", "cpu"), ("fixed-gpu", "gpu"), ("firmware", "gpu")]


def wish(name: str, side: str, node: Layout, seen: Sample, **given: int):
    policy = registry.policy(name, side)
    params = registry.params(policy, given)
    return policy.decide(params, node, policy.initial(params, node), seen)[1]


def blind(node: Layout) -> Sample:
    """A sample in which every reading is missing."""
    seen = sample(node, cpu_quality=[Quality.MISSING] * len(node.cpus), gpu_quality=[Quality.MISSING] * len(node.gpus))
    for part in (seen.cpu, seen.gpu):
        for field in dataclasses.fields(part):
            values = getattr(part, field.name)
            if values.dtype.kind == "f":
                values[:] = np.nan
    return seen


@pytest.mark.parametrize(
    ("name", "side", "given"),
    [
        ("fixed-cpu", "cpu", {"clock_khz": 10**20}),
        ("fixed-cpu", "cpu", {"clock_khz": -1}),
        ("fixed-gpu", "gpu", {"clock_mhz": 10**20}),
        ("fixed-uncore", "uncore", {"value": 10**20}),
        ("bdpo-gpu", "gpu", {"high_mhz": 10**20}),
        ("bdpo-cpu", "cpu", {"dwell_s": np.inf}),
        ("bdpo-cpu", "cpu", {"dwell_s": np.nan}),
        ("gpu-ladder", "gpu", {"price": np.nan}),
    ],
)
def test_a_number_that_no_policy_can_decide_with_is_refused_with_the_settings(
    name: str, side: str, given: dict[str, float]
) -> None:
    (key,) = given
    with pytest.raises(registry.PolicyError, match=f"^{name}: {key} ") as caught:
        registry.check(name, side, given)
    assert caught.value.key == ("params", key)


def decider(node: Layout, **given) -> Decider:
    return Decider(node, Config(mode="optimize", **given))


def test_a_fixed_clock_is_requested_on_every_cpu_and_gpu_at_every_tick():
    node = layout()
    policy, params = fixed.CPU_POLICY, FixedCpuParams(clock_khz=1_600_000)
    held = policy.initial(params, node)
    for busy in (1.0, 0.0, 0.3):
        held, request = policy.decide(params, node, held, sample(node, busy=busy))
        assert request.target.tolist() == [1_600_000] * 4
    assert wish("fixed", "gpu", node, sample(node), clock_mhz=1095).target.tolist() == [1095] * 2


def test_a_fixed_clock_of_zero_is_the_highest_there_is():
    node = layout()
    assert wish("fixed", "cpu", node, sample(node)).target.tolist() == [MAX_KHZ] * 4
    assert wish("fixed", "gpu", node, sample(node)).target.tolist() == [CLOCKS_MHZ[-1]] * 2


def test_a_cpu_without_a_frequency_domain_and_a_gpu_without_a_ladder_get_no_request():
    node = layout()
    bare = msgspec.structs.replace(node.gpus[0], clocks_mhz=())
    node = msgspec.structs.replace(node, domains=node.domains[:1], gpus=(bare, node.gpus[1]))
    assert wish("fixed", "cpu", node, sample(node), clock_khz=1_600_000).target.tolist() == [1_600_000] * 2 + [0] * 2
    assert wish("fixed", "gpu", node, sample(node), clock_mhz=1095).target.tolist() == [0, 1095]


def test_the_firmware_policy_never_locks_a_clock():
    node = layout()
    for seen in (sample(node), sample(node, busy=0.0, gpu_energy_j=0.0), blind(node)):
        assert wish("firmware", "gpu", node, seen).target.tolist() == [0, 0]


@pytest.mark.parametrize(("name", "side"), REFERENCES)
def test_a_reference_makes_no_claim_about_saving_or_loss(name, side):
    request = wish(name, side, layout(), sample(layout()))
    assert np.isnan(request.loss).all() and np.isnan(request.saved_w).all()
    assert set(request.reason.tolist()) == {0}


@pytest.mark.parametrize(("name", "side"), REFERENCES)
def test_a_missing_reading_never_lowers_a_clock(name, side):
    node = layout()
    with_readings = wish(name, side, node, sample(node))
    without = wish(name, side, node, blind(node))
    free = np.iinfo(np.int64).max
    lowered = np.where(without.target == 0, free, without.target) < np.where(
        with_readings.target == 0, free, with_readings.target
    )
    assert not lowered.any()


def test_a_fixed_clock_is_given_back_where_its_readings_are_missing():
    node = layout()
    both = decider(
        node,
        cpu_policy=PolicyChoice("fixed", {"clock_khz": 1_600_000}),
        gpu_policy=PolicyChoice("fixed", {"clock_mhz": 1095}),
    )
    assert both.decide(sample(node)).values.tolist() == [1_600_000, 1_600_000, 1095, 1095]
    assert both.decide(blind(node)).values.tolist() == [0, 0, 0, 0]
    one = sample(node, cpu_quality=[Quality.MISSING, *[Quality.MEASURED] * 3])
    assert both.decide(one).values.tolist() == [0, 1_600_000, 1095, 1095], "its domain, and no other"


def test_a_cap_overrules_a_fixed_clock_and_the_firmware():
    node = layout()
    capped = decider(
        node,
        cpu_policy=PolicyChoice("fixed"),
        gpu_policy=PolicyChoice("firmware"),
        caps=Caps(cpu_max_khz=2_000_000, gpu_max_mhz=1305),
    )
    assert capped.decide(sample(node)).values.tolist() == [2_000_000, 2_000_000, 1305, 1305]


def test_fixed_takes_its_clock_in_the_unit_of_its_side():
    assert FixedCpuParams.__struct_fields__ == ("clock_khz",)
    assert FixedGpuParams.__struct_fields__ == ("clock_mhz",)
