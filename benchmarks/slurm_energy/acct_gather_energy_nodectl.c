/*
 * acct_gather_energy/nodectl: sacct's ConsumedEnergy from the joules that nodectl counts on the node.
 *
 * Slurm's own plug-ins book the whole node to each job that shares it. nodectl's page has a line for each job
 * (nodectl/site_jobs/joules_page.py); a step gets what its job has drawn since the step began. The page is written once
 * a second: what is missing since then is continued by the job's mean power.
 *
 *     # job user joules of-meters metered-s missing-s most-jobs quality end
 *     node - 17321.500 8806.100 81.100 0.000 1 measured -
 *     17 alice 5926.250 3091.200 27.000 0.000 1 measured running
 *
 * slurmstepd knows its job by its own title ("slurmstepd: [17.batch]"); slurmd, which has none, takes the line of the
 * node. For a benchmark only (benchmarks/slurm_plugin.py).
 *
 * Copyright: the authors of nodectl. Since Slurm loads it, this file alone is licensed under the GNU General Public
 * License, version 2 or later (SPDX-License-Identifier: GPL-2.0-or-later).
 * Sources: slurm.h of 22.05; Slurm's plug-in programmer's guide and its guide of acct_gather_energy plug-ins.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#define PAGE "/run/nodectl/job-joules"
#define LATEST_S 3.0 /* ours: an older page is not continued; its agent is gone */

const char plugin_name[] = "joules of nodectl";
const char plugin_type[] = "acct_gather_energy/nodectl";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

typedef struct {
    double joules, watts; /* -1: not known */
} drawn_t;

/* The job of this slurmstepd, or "node". */
static void whose(char *name, size_t size)
{
    char title[256] = "";
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t length = file ? fread(title, 1, sizeof title - 1, file) : 0;

    if (file)
        fclose(file);
    title[length] = '\0';
    if (strncmp(title, "slurmstepd: [", 13))
        snprintf(name, size, "node");
    else
        snprintf(name, size, "%.*s", (int)strspn(title + 13, "0123456789"), title + 13);
}

static drawn_t drawn(void)
{
    char name[32], line[512], job[96];
    double joules, metered_s;
    struct stat status;
    struct timespec now;
    drawn_t found = {-1.0, -1.0};
    FILE *file = fopen(PAGE, "re");

    if (!file)
        return found;
    whose(name, sizeof name);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%95s %*s %lf %*s %lf", job, &joules, &metered_s) != 3 || strcmp(job, name))
            continue;
        found.joules = joules;
        found.watts = metered_s > 0 ? joules / metered_s : 0.0;
    }
    if (found.joules >= 0 && !fstat(fileno(file), &status) && !clock_gettime(CLOCK_REALTIME, &now)) {
        double age_s = difftime(now.tv_sec, status.st_mtim.tv_sec);
        age_s += 1e-9 * (double)(now.tv_nsec - status.st_mtim.tv_nsec);
        if (age_s > 0 && age_s < LATEST_S)
            found.joules += found.watts * age_s;
    }
    fclose(file);
    return found;
}

/* `energy` keeps its base from call to call: that of the first one, when the step or the daemon begins. */
static void update(acct_gather_energy_t *energy)
{
    drawn_t now = drawn();

    if (now.joules < 0) {
        energy->current_watts = NO_VAL;
        return;
    }
    uint64_t joules = (uint64_t)(now.joules + 0.5);
    if (!energy->poll_time || joules < energy->base_consumed_energy)
        energy->base_consumed_energy = joules;
    energy->previous_consumed_energy = energy->consumed_energy;
    energy->consumed_energy = joules - energy->base_consumed_energy;
    energy->current_watts = energy->ave_watts = (uint32_t)(now.watts + 0.5);
    energy->poll_time = time(NULL);
}

static acct_gather_energy_t of_node;

extern int init(void)
{
    return SLURM_SUCCESS;
}

extern int fini(void)
{
    return SLURM_SUCCESS;
}

extern int acct_gather_energy_p_update_node_energy(void)
{
    update(&of_node);
    return SLURM_SUCCESS;
}

extern int acct_gather_energy_p_get_data(enum acct_energy_type type, void *data)
{
    switch (type) {
    case ENERGY_DATA_JOULES_TASK:
    case ENERGY_DATA_NODE_ENERGY_UP:
        update(data);
        break;
    case ENERGY_DATA_STRUCT:
    case ENERGY_DATA_NODE_ENERGY:
        memcpy(data, &of_node, sizeof of_node);
        break;
    case ENERGY_DATA_LAST_POLL:
        *(time_t *)data = of_node.poll_time;
        break;
    case ENERGY_DATA_SENSOR_CNT:
        *(uint16_t *)data = 1;
        break;
    default:
        return SLURM_ERROR;
    }
    return SLURM_SUCCESS;
}

extern int acct_gather_energy_p_set_data(enum acct_energy_type type, void *data)
{
    (void)data;
    if (type == ENERGY_DATA_RECONFIG)
        update(&of_node);
    return SLURM_SUCCESS;
}

extern void acct_gather_energy_p_conf_options(void *options, int *count)
{
    (void)options, (void)count;
}

extern void acct_gather_energy_p_conf_set(int context, void *table)
{
    (void)context, (void)table;
}

extern void acct_gather_energy_p_conf_values(void *data)
{
    (void)data;
}
