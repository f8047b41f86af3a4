"""`python -m benchmarks [NAME...] [--quick]`: run all measurements, or the named ones, one after the other.

`python -m benchmarks published` says whether the tables of `docs/benchmarks*.md`, and those of other pages that name
their rows, are those of today's code.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time

NAMES = (
    "twin_speed",
    "twin_served",
    "twin_fit",
    "twin_bandwidth",
    "twin_uncore",
    "corun",
    "gpu_slices",
    "sweep_cost",
    "agent_cost",
    "writer_cost",
    "paired_cost",
    "replay_speed",
    "replay_exact",
    "energy_budget",
    "sc15_learned",
    "own_estimates",
    "energy_fair_share",
    "scheduler_speed",
    "peers",
    "library_cost",
    "campaigns",
    "scores",
    "stepping",
    "batsim",
    "portfolio",
    "power_speed",
    "eurora_capped",
    "planned_capped",
    "bridi_tables",
    "plan_orders",
    "profit",
    "dardis",
    "elastic",
    "hybrid",
    "hybrid_timers",
    "shortfalls",
    "power_prediction",
    "learned_tags",
    "live_models",
    "models_service",
    "mqtt_broker",
    "thermal_hazard",
    "hazard_action",
    "rmap",
    "rmap_design",
    "eco_killer",
    "powercap_curie",
    "powercap_rescaled",
    "ledger",
    "ledger_levels",
    "true_power",
    "fabric",
    "network_cut",
    "page",
    "slurm",
    "slurm_joules",
    "slurm_partition",
    "slurm_kills",
    "slurm_kills_shared",
    "slurm_schedule",
    "slurm_shared",
    "slurm_scmi",
    "slurm_cycle",
    "slurm_day",
    "oar",
    "slurm_plugin",
    "riplay",
    "job_kills",
    "hostile_jobs",
    "kill_campaign",
    "hostile_limits",
    "chaos",
    "soak",
    "jobs_turn",
    "rebalance",
    "sharers",
    "firmware_cap",
    "firmware_delay",
    "firmware_rv32",
    "firmware_faults",
    "firmware_faults_together",
    "firmware_rtl",
    "firmware_bound",
    "scmi_codec",
    "scmi_round_trip",
    "published_facts",
    "gpu_pairs",
    "shared_nodes",
    "shared_gpus",
    "gpu_stage_clocks",
    "gpu_limit_ripple",
    "pipeline_frontier",
    "cap_curves",
    "cpu_savings",
    "gpu_savings",
    "hint_events",
    "hint_delay",
    "mpi_waits",
    "gpu_phases_remembered",
    "phases_elsewhere",
    "gpu_counter_error",
    "calibration_limits",
    "calibration_table",
    "calibration_silicon",
    "interval_coverage",
    "calibrated_policies",
    "calibrated_uncore",
    "calibrated_tags",
    "stated_violation",
    "least_energy_clocks",
    "calibrated_sharer",
)


def main() -> int:
    if sys.argv[1:2] == ["published"]:
        from benchmarks.publishing.command import command  # which imports every measurement

        return command(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="shorter runs and fewer seeds")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown measurement {unknown[0]!r}; there are {', '.join(NAMES)}")
    failed = 0
    for name in options.names or NAMES:
        print(f"\n=== {name}", flush=True)
        started = time.monotonic()
        status = importlib.import_module(f"benchmarks.{name}").main(["--quick"] if options.quick else [])
        print(f"--- {name}: {time.monotonic() - started:.0f} s", flush=True)
        failed += status != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
