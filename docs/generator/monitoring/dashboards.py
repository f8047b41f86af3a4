"""The four dashboards: a site, a partition, a node, a job. Each query is written as Prometheus gets it.

``$partition`` may be all of them, also where the site gives its partitions no label; a node and a job are one. Sums
over all nodes are the recorded ones of ``rules``. A dashboard's uid is in the addresses that other programs link to
(docs/dashboards.md), so it stays.
"""

from __future__ import annotations

from typing import Final

from docs.generator.monitoring.grafana import Dashboard, Panel, Target, Variable

J_PER_KWH: Final = "3.6e6"
IN: Final = 'partition=~"$partition"'
AT: Final = f'{IN},node="$node"'
OF: Final = f'{IN},jobid="$job"'
JOB_NODES: Final = f"on (partition, node) group_left clusterctl_job_node_info{{{OF}}}"
"""Of each of the job's nodes."""

TO_NODE: Final = "/d/nodectl-node?var-partition=${__data.fields.partition}&var-node=${__value.raw}&${__url_time_range}"
TO_JOB: Final = "/d/nodectl-job?var-partition=${__data.fields.partition}&var-job=${__value.raw}&${__url_time_range}"
TO_PARTITION: Final = "/d/nodectl-partition?var-partition=${__value.raw}&${__url_time_range}"

RESTARTS: Final = "The counter begins at 0 with the cluster agent, which this figure takes into account."
PARTITION: Final = Variable("partition", "clusterctl_up", "partition", with_all=True)


def _stat(
    title: str, unit: str, query: str, help_: str = "", legend: str = "", width: int = 4, shows_legend: bool = False
) -> Panel:
    return Panel(title, "stat", unit, (Target(query, legend),), help_, width, 4, shows_legend=shows_legend)


SITE: Final = Dashboard(
    "nodectl-site", "nodectl: site", "All partitions: power against budgets, energy by partition and user, alarms.",
    (),
    (
        _stat("Cluster agents that answer", "short", "sum(clusterctl_up)"),
        _stat("Budget", "watt", "sum(partition:clusterctl_budget_watts:sum)"),
        _stat("Drawn", "watt", "sum(partition:clusterctl_drawn_watts:sum)", "By nodes' reports, and the fixed power."),
        _stat("Energy in this time", "kwatth",
              f"sum(increase(clusterctl_energy_joules_total[$__range])) / {J_PER_KWH}", RESTARTS),
        _stat("Silent nodes", "short", "sum(clusterctl_silent_nodes)"),
        _stat("Alarms", "short", "sum(clusterctl_alarms)"),
        Panel("Power of each partition", "timeseries", "watt",
              (Target("partition:clusterctl_drawn_watts:sum", "{{partition}} drawn"),
               Target("partition:clusterctl_budget_watts:sum", "{{partition}} budget"))),
        Panel("Nodes that a cap bounds", "timeseries", "short",
              (Target("sum by (partition) (partition_by:clusterctl_bound_nodes:count)", "{{partition}}"),),
              "None: no node is slowed by its cap."),
        Panel("Partitions", "table", "watt", (
            Target("sum by (partition) (clusterctl_budget_watts)", "budget"),
            Target("partition:clusterctl_drawn_watts:sum", "drawn"),
            Target("sum by (partition) (clusterctl_over_watts)", "could exceed by"),
            Target(f"sum by (partition) (increase(clusterctl_energy_joules_total[$__range])) / {J_PER_KWH}", "energy"),
            Target("sum by (partition) (clusterctl_nodes)", "nodes"),
            Target("sum by (partition) (clusterctl_silent_nodes)", "silent"),
            Target("sum by (partition) (clusterctl_alarms)", "alarms"),
        ), links={"partition": TO_PARTITION},
              units={"energy": "kwatth", "nodes": "short", "silent": "short", "alarms": "short"}),
        Panel("Energy of users in this time", "table", "kwatth", (
            Target(f"sum by (user) (increase(clusterctl_user_energy_joules_total[$__range])) / {J_PER_KWH}", "energy"),
            Target("sum by (user) (increase(clusterctl_user_ended_jobs_total[$__range]))", "jobs"),
            Target('sum by (user) (increase(clusterctl_user_ended_jobs_total{energy="unknown"}[$__range]))',
                   "of these unknown"),
        ), "Of jobs that ended in this time. A job that shared a node, or whose nodes do not measure, has no known"
           " energy. `clusterctl energy` has each job.", units={"jobs": "short", "of these unknown": "short"}),
        Panel("Alarms over time", "state-timeline", "none",
              (Target("sum by (partition, kind) (clusterctl_alarm)", "{{partition}} {{kind}}"),),
              "`clusterctl budget show` has them in words, with what to do."),
        Panel("Jobs", "timeseries", "short", (Target("sum by (state) (clusterctl_jobs)", "{{state}}"),),
              "Of cluster agents that run jobs themselves."),
    ),
)  # fmt: skip

PARTITION_PAGE: Final = Dashboard(
    "nodectl-partition", "nodectl: partition", "One partition: whether it is within the budget, and who bounds it.",
    (PARTITION,),
    (
        _stat("Budget", "watt", f"sum(clusterctl_budget_watts{{{IN}}})"),
        _stat("Drawn", "watt", f"sum(partition:clusterctl_drawn_watts:sum{{{IN}}})"),
        _stat("Could exceed by", "watt", f"sum(clusterctl_over_watts{{{IN}}})",
              "By how much nodes could exceed the budget now. For a moment after a lowering this is no fault."),
        _stat("Free", "watt", f"sum(clusterctl_free_watts{{{IN}}})", "What could still be granted."),
        _stat("Silent nodes", "short", f"sum(clusterctl_silent_nodes{{{IN}}})"),
        _stat("Alarms", "short", f"sum(clusterctl_alarms{{{IN}}})"),
        Panel("Power against the budget", "timeseries", "watt", (
            Target(f"sum(partition:clusterctl_budget_watts:sum{{{IN}}})", "budget"),
            Target(f"sum(clusterctl_counted_watts{{{IN}}}) + sum(clusterctl_fixed_watts{{{IN}}})", "could be drawn"),
            Target(f"sum(partition:clusterctl_drawn_watts:sum{{{IN}}})", "drawn"),
        ), "What could be drawn is what all nodes count in the ledger, with the fixed power."),
        Panel("Who bounds: nodes by what decided the cap that bounds them", "timeseries", "short",
              (Target(f"sum by (by) (partition_by:clusterctl_bound_nodes:count{{{IN}}})", "{{by}}"),),
              "`clusterctl why NODE` says it in sentences. None: no node is slowed by its cap.", is_stacked=True),
        Panel("Caps of all nodes", "timeseries", "watt", (
            Target(f"sum(partition:clusterctl_wanted_watts:sum{{{IN}}})", "wanted"),
            Target(f"sum(partition:clusterctl_granted_watts:sum{{{IN}}})", "granted"),
            Target(f"sum(partition:clusterctl_in_force_watts:sum{{{IN}}})", "in force"),
        )),
        Panel("Nodes that wait for the wanted cap", "timeseries", "short",
              (Target(f"sum by (waits_for) (partition_waits:clusterctl_nodes:count{{{IN}}})", "{{waits_for}}"),),
              is_stacked=True),
        Panel("Watts of users' jobs", "timeseries", "watt",
              (Target(f"sum by (user) (partition_user:clusterctl_job_watts:sum{{{IN}}})", "{{user}}"),),
              "Of jobs that have their nodes for themselves.", is_stacked=True),
        Panel("Nodes by state", "timeseries", "short",
              (Target(f"sum by (state) (partition_state:clusterctl_nodes:count{{{IN}}})", "{{state}}"),),
              is_stacked=True),
        Panel("Nodes", "table", "watt", (
            Target(f"sum by (partition, node, state, tag) (clusterctl_node_info{{{IN}}})", "known"),
            Target(f"sum by (partition, node) (clusterctl_node_in_force_watts{{{IN}}})", "cap in force"),
            Target(f"sum by (partition, node) (clusterctl_node_power_watts{{{IN}}})", "power"),
            Target(f"sum by (partition, node) (increase(clusterctl_node_energy_joules_total{{{IN}}}[$__range]))"
                   f" / {J_PER_KWH}", "energy"),
            Target(f"sum by (partition, node, by) (clusterctl_node_bound{{{IN}}})", "is bound"),
        ), links={"node": TO_NODE}, units={"known": "short", "is bound": "short", "energy": "kwatth"}, height=10),
        Panel("Jobs that run", "table", "watt", (
            Target(f"sum by (partition, jobid, user, manager) (clusterctl_job_power_watts{{{IN}}})", "power"),
            Target(f"sum by (partition, jobid, user, manager) (clusterctl_job_energy_joules_total{{{IN}}})"
                   f" / {J_PER_KWH}", "energy so far"),
            Target(f"count by (partition, jobid, user, manager) (clusterctl_job_node_info{{{IN}}})", "nodes"),
        ), links={"jobid": TO_JOB}, units={"energy so far": "kwatth", "nodes": "short"}, height=10),
        Panel("Alarms over time", "state-timeline", "none",
              (Target(f"max by (kind) (clusterctl_alarm{{{IN}}})", "{{kind}}"),),
              "`clusterctl budget show` has them in words, with what to do."),
        Panel("The budget was set last", "table", "dateTimeAsIso",
              (Target(f"1000 * max by (partition, by) (clusterctl_budget_set_timestamp_seconds{{{IN}}})", "at"),),
              "`clusterctl budget log` has the changes before.", 6),
        Panel("The cluster agent: longest wait", "timeseries", "s",
              (Target(f"max by (partition) (clusterctl_loop_lag_seconds{{{IN}}})", "{{partition}}"),),
              "Above 2 s the head node is too slow for its nodes.", 6),
        Panel("Room on the store's disk", "timeseries", "bytes",
              (Target(f"min by (partition) (clusterctl_store_free_bytes{{{IN}}})", "{{partition}}"),), width=6),
    ),
)  # fmt: skip

NODE_PAGE: Final = Dashboard(
    "nodectl-node", "nodectl: node", "One node: its cap, what it draws, what bounds it, and its jobs.",
    (PARTITION, Variable("node", f"clusterctl_node_info{{{IN}}}", "node")),
    (
        _stat("Cap in force", "watt", f"max(clusterctl_node_in_force_watts{{{AT}}})"),
        _stat("Power", "watt", f"max(clusterctl_node_power_watts{{{AT}}})"),
        _stat("Energy in this time", "kwatth",
              f"sum(increase(clusterctl_node_energy_joules_total{{{AT}}}[$__range])) / {J_PER_KWH}", RESTARTS),
        _stat("Last report", "s", f"min(clusterctl_node_report_age_seconds{{{AT}}})", "Its age."),
        _stat("State", "none", f"clusterctl_node_info{{{AT}}}", legend="{{state}}, {{jobs}}", width=8,
              shows_legend=True),
        Panel("Power and caps", "timeseries", "watt", (
            Target(f"max(clusterctl_node_power_watts{{{AT}}})", "power"),
            Target(f"max(clusterctl_node_wanted_watts{{{AT}}})", "wanted"),
            Target(f"max(clusterctl_node_granted_watts{{{AT}}})", "granted"),
            Target(f"max(clusterctl_node_in_force_watts{{{AT}}})", "in force"),
            Target(f"max(clusterctl_node_counted_watts{{{AT}}})", "counts in the budget"),
        )),
        Panel("What bounds it", "state-timeline", "none",
              (Target(f"max by (by) (clusterctl_node_bound{{{AT}}})", "{{by}}"),),
              "Empty: its cap does not slow it. `clusterctl why NODE` says more."),
        Panel("Jobs on it", "state-timeline", "none",
              (Target(f"max by (jobid, user) (clusterctl_job_node_info{{{AT}}})", "{{jobid}} {{user}}"),)),
        Panel("States and tags", "state-timeline", "none",
              (Target(f"max by (state, tag, tag_source) (clusterctl_node_info{{{AT}}})",
                      "{{state}} {{tag}} {{tag_source}}"),)),
        Panel("Power by its own instruments", "timeseries", "watt",
              (Target(f"sum by (side) (node_side:nodectl_power_watts:rate2m{{{AT}}})", "{{side}}"),),
              "The sides psys and core overlap with cpu."),
        Panel("Knobs by the limit that binds them", "timeseries", "short",
              (Target(f"sum by (domain, bound) (nodectl_knobs{{{AT}}})", "{{domain}}: {{bound}}"),), is_stacked=True),
        Panel("Clocks of the CPUs", "timeseries", "hertz",
              (Target(f"max by (statistic) (nodectl_cpu_clock_hertz{{{AT}}})", "{{statistic}}"),)),
        Panel("Clocks of the GPUs", "timeseries", "hertz",
              (Target(f"max by (gpu) (nodectl_gpu_clock_hertz{{{AT}}})", "GPU {{gpu}}"),), "None: it has no GPU."),
        Panel("Power of the GPUs", "timeseries", "watt",
              (Target(f"max by (gpu) (nodectl_gpu_power_watts{{{AT}}})", "GPU {{gpu}}"),), "None: it has no GPU."),
        Panel("Readings by quality", "timeseries", "short",
              (Target(f"sum by (quality) (nodectl_readings{{{AT}}})", "{{quality}}"),), is_stacked=True),
        Panel("Agent", "table", "short", (
            Target(f"max by (version, mode) (nodectl_build_info{{{AT}}})", "runs"),
        ), width=12),
        Panel("Periods that the agent missed", "timeseries", "short",
              (Target(f"sum(rate(nodectl_missed_periods_total{{{AT}}}[$__rate_interval]))", "per second"),)),
    ),
)  # fmt: skip

JOB_PAGE: Final = Dashboard(
    "nodectl-job", "nodectl: job", "One job: its watts and joules, its nodes, and what bounds them.",
    (PARTITION, Variable("job", f"clusterctl_job_node_info{{{IN}}}", "jobid")),
    (
        _stat("Energy", "kwatth", f"max(max_over_time(clusterctl_job_energy_joules_total{{{OF}}}[$__range]))"
              f" / {J_PER_KWH}", "As of the last scrape before its end. `clusterctl jobs` and `clusterctl energy` have"
              " the last seconds, too.", width=6),
        _stat("Power", "watt", f"max(clusterctl_job_power_watts{{{OF}}})", "Of its nodes, while it runs.", width=6),
        _stat("Nodes", "short", f"count(clusterctl_job_node_info{{{OF}}})", width=6),
        _stat("Mean power in this time", "watt", f"max(avg_over_time(clusterctl_job_power_watts{{{OF}}}[$__range]))",
              width=6),
        Panel("Power of the job", "timeseries", "watt",
              (Target(f"max by (user) (clusterctl_job_power_watts{{{OF}}})", "{{user}}"),)),
        Panel("Energy so far", "timeseries", "joule",
              (Target(f"max by (user) (clusterctl_job_energy_joules_total{{{OF}}})", "{{user}}"),)),
        Panel("Power of its nodes", "timeseries", "watt",
              (Target(f"clusterctl_node_power_watts * {JOB_NODES}", "{{node}}"),)),
        Panel("Caps in force on its nodes", "timeseries", "watt",
              (Target(f"clusterctl_node_in_force_watts * {JOB_NODES}", "{{node}}"),)),
        Panel("What bounds its nodes", "timeseries", "short",
              (Target(f"count by (by) (clusterctl_node_bound * {JOB_NODES})", "{{by}}"),),
              "Nodes by what decided the cap that bounds them. None: no cap slows the job.", is_stacked=True),
        Panel("Its nodes", "table", "watt",
              (Target(f"max by (partition, node) (clusterctl_node_power_watts * {JOB_NODES})", "power"),),
              links={"node": TO_NODE}),
    ),
)  # fmt: skip

DASHBOARDS: Final = (SITE, PARTITION_PAGE, NODE_PAGE, JOB_PAGE)
