/*
 * Turbo bins: the highest clock of a core by how many cores of its package are active and by the vectors it uses.
 *
 * Problem. Fewer active cores leave more current and power to each, wide vectors draw more of it. So processors have a
 * table: up to so many active cores, so many megahertz, one row for each licence (Intel SDM vol. 4,
 * MSR_TURBO_RATIO_LIMIT and MSR_TURBO_GROUP_CORECNT; the rows for AVX2 and AVX-512 are in no register).
 *
 * Law. A core is active while a thread of it runs or polls, or runs programs of the host. Its licence is the widest of
 * its running phases. A frequency domain runs at most at the lowest clock that the table has for its active cores; one
 * without active cores is not bound. Changes apply at once: how long a processor takes is not modelled.
 *
 * Whether any core is active is passed on to the uncore.
 *
 * Cost. O(cores of the package) when a core becomes active or idle or changes its licence, nothing otherwise.
 */
#include "model_internal.h"

static int32_t is_active(const twin_model_t *m, int32_t core)
{
    return m->core_busy[core] > 0 || m->core_hosts[core];
}

static int32_t active_cores(const twin_model_t *m, int32_t package)
{
    int32_t active = 0;

    for (int32_t core = m->first_core[package]; core < m->first_core[package + 1]; core++)
        active += is_active(m, core);
    return active;
}

static void bound_package(twin_model_t *m, int32_t package, int32_t active)
{
    int32_t bin = 0, top = m->node.n_levels - 1;

    while (bin < m->node.n_bins - 1 && active > m->node.bin_cores[bin])
        bin++;
    for (int32_t d = 0; d < m->node.n_domains; d++) {
        if (m->domain_package[d] != package)
            continue;
        int32_t highest = top;
        for (int32_t cpu = m->first_cpu[d]; cpu >= 0; cpu = m->next_cpu[cpu]) {
            int32_t core = m->node.core_of[cpu];
            int32_t level = m->node.bin_level[m->core_license[core] * m->node.n_bins + bin];
            if (is_active(m, core) && level < highest)
                highest = level;
        }
        m->turbo_level[d] = highest;
    }
    cpu_show_levels(m, package);
}

void turbo_share(twin_model_t *m)
{
    if (m->node.n_bins <= 0 && m->node.uncore_khz <= 0)
        return;
    for (int32_t p = 0; p < m->node.n_packages; p++) {
        if (!m->activity_changed[p])
            continue;
        m->activity_changed[p] = 0;
        int32_t active = active_cores(m, p);
        if (m->node.n_bins > 0)
            bound_package(m, p, active);
        uncore_follow(m, p, active > 0);
    }
}
