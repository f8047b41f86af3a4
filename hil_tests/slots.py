"""How many control slots a scenario takes, for rigs on which a slot takes long. Those below 50 are not listed.

Counted on the `inproc` rig and rounded up; on a serial line, where silence takes slots too, somewhat more.
"""

from __future__ import annotations

from typing import Final

SLOTS: Final = {
    "test_a_reset_in_mid_transaction_loses_the_answer_and_nothing_else": 70,
    "test_a_cap_out_of_range_leaves_the_previous_one_in_force": 70,
    "test_a_lower_cap_is_met_two_slots_after_it_was_set": 120,
    "test_a_lower_level_takes_effect_before_it_is_answered": 130,
    "test_of_two_agents_caps_the_lower_one_is_in_force_until_it_is_withdrawn": 160,
    "test_an_asynchronous_cap_is_answered_again_once_it_is_in_force": 160,
    "test_a_cap_is_kept_without_any_power_sensor": 170,
    "test_a_lost_late_doubled_damaged_or_cut_message_is_repaired_by_the_next_try": 180,
    "test_silence_is_an_error_after_a_bounded_number_of_tries": 180,
    "test_what_agents_read_of_power_and_heat_is_the_chips": 220,
    "test_a_killed_controller_is_noticed_and_starts_again_with_nothing_remembered": 220,
    "test_without_any_temperature_the_chip_stays_cool": 250,
    "test_a_cap_keeps_power_below_it_and_a_raise_frees_it": 340,
    "test_of_two_agents_levels_the_higher_one_is_in_force_while_both_live": 420,
    "test_with_a_lease_the_agreed_cap_takes_over_while_the_link_is_cut": 850,
    "test_a_hot_heat_sink_costs_clocks_and_the_die_stays_at_its_set_point": 1100,
    "test_a_lease_with_a_set_end_ends_on_the_controllers_own_clock_and_late_requests_cannot_move_it": 2300,
    "test_a_temperature_that_stands_still_is_noticed_when_its_neighbours_leave_it": 4300,
    "test_a_cap_outlives_a_link_that_is_cut_for_5_seconds": 11000,
}
