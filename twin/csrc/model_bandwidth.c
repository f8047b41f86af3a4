/*
 * Memory bandwidth that cores share.
 *
 * Problem. A core, the link of a group of cores (a core complex die of Zen), and a package each pass so many bytes a
 * second. When the running threads ask for more, all who share it wait longer for their data.
 *
 * Law. A thread alone asks for d GB/s and waits for memory in a share q of its time. A stretch s >= 1 of that part
 * makes it 1 - q + s q times as slow, and its traffic d / (1 - q + s q). What is shared by several threads has the
 * smallest s at which their traffic fits:
 *
 *     sum of d_i / (1 - q_i + max(s, t_i) q_i) = capacity
 *
 * t_i is the stretch by what lies nearer to the thread: core, then link, then package. So a thread waits as the
 * narrowest place on its way makes it wait. A link loses a share of its capacity for each further core's worth of
 * demand (as measured on Zen 2, benchmarks/twin_bandwidth.py).
 *
 * Invariant. q_i >= min(1, d_i / core_gbs) (model_cpu.c), so q_i > 0, and a thread's traffic is at most d_i / (s q_i).
 * Hence a solution lies in 1 <= s <= (sum of d_i / q_i) / capacity, whatever the workload.
 *
 * Cost. O(threads of the package) for each change of a demand; the search takes one step where all threads are alike.
 */
#include "model_internal.h"

#define LEAST_CAPACITY 0.5 /* ours: a crowded link keeps half, as does what the host's programs take part of */
#define SEARCH_STEPS   60
#define TOLERANCE      1e-10

/* Traffic of threads [first, end) of the scratch arrays at a stretch; `slope` is its derivative. */
static double traffic_at(const twin_model_t *m, int32_t first, int32_t end, double stretch, double *slope)
{
    double sum = 0;

    *slope = 0;
    for (int32_t i = first; i < end; i++) {
        double own = m->share_stretch[i], share = m->share_memory[i];
        double slower = 1.0 - share + (stretch > own ? stretch : own) * share;
        double flow = m->share_gbs[i] / slower;
        sum += flow;
        if (stretch >= own)
            *slope -= flow * share / slower;
    }
    return sum;
}

/*
 * The smallest stretch at which these threads fit into `gbs`. A step aims at 1 / traffic, which is linear in the
 * stretch where all threads are alike; a step that leaves the bracket halves it.
 */
static double fitting_stretch(const twin_model_t *m, int32_t first, int32_t end, double gbs)
{
    double low = 1.0, high = 0, stretch = low, slope;
    double traffic = traffic_at(m, first, end, low, &slope);

    if (traffic <= gbs)
        return 1.0;
    for (int32_t i = first; i < end; i++)
        high += m->share_gbs[i] / m->share_memory[i] / gbs;
    for (int step = 0; step < SEARCH_STEPS; step++) {
        double next = slope < 0 ? stretch + (traffic / gbs - 1.0) * traffic / -slope : high;
        stretch = next > low && next < high ? next : 0.5 * (low + high);
        traffic = traffic_at(m, first, end, stretch, &slope);
        if (traffic > gbs)
            low = stretch;
        else
            high = stretch;
        if (traffic <= gbs * (1.0 + TOLERANCE) && traffic >= gbs * (1.0 - TOLERANCE))
            return stretch;
    }
    return high;
}

static void at_least(double *stretch, int32_t first, int32_t end, double least)
{
    for (int32_t i = first; i < end; i++)
        if (stretch[i] < least)
            stretch[i] = least;
}

/* The running threads of a core, into the scratch arrays from `at` on; returns the end. Adds up what the host's
 * programs take there, which nothing slows. */
static int32_t gather_core(twin_model_t *m, int32_t core, int32_t at, double *taken_gbs)
{
    int32_t first = at;

    for (int32_t t = m->first_thread[core]; t < m->first_thread[core + 1]; t++) {
        int32_t cpu = m->threads[t];
        if (m->demand_gbs[cpu] <= 0)
            continue;
        m->share_gbs[at] = m->demand_gbs[cpu];
        m->share_memory[at] = m->demand_share[cpu];
        m->share_stretch[at] = 1.0;
        at++;
    }
    at_least(m->share_stretch, first, at, fitting_stretch(m, first, at, m->node.core_gbs));
    *taken_gbs += m->host_gbs[core];
    return at;
}

static double left_of(double gbs, double taken_gbs)
{
    double left = gbs - taken_gbs, least = LEAST_CAPACITY * gbs;

    return left > least ? left : least;
}

/* What a link passes when the threads [first, end) ask: less for each core's worth of demand after the first. */
static double link_capacity(const twin_model_t *m, int32_t first, int32_t end)
{
    double demand = 0;

    for (int32_t i = first; i < end; i++)
        demand += m->share_gbs[i] < m->node.core_gbs ? m->share_gbs[i] : m->node.core_gbs;
    double further = demand / m->node.core_gbs - 1.0, kept = 1.0 - m->node.link_loss * (further > 0 ? further : 0);
    return m->node.link_gbs * (kept > LEAST_CAPACITY ? kept : LEAST_CAPACITY);
}

/* Threads of a core have one stretch. */
static int32_t apply_to_core(twin_model_t *m, int32_t core, int32_t at)
{
    double stretch = 1.0;

    for (int32_t t = m->first_thread[core]; t < m->first_thread[core + 1]; t++)
        if (m->demand_gbs[m->threads[t]] > 0)
            stretch = m->share_stretch[at++];
    if (stretch != m->core_stretch[core]) {
        m->core_stretch[core] = stretch;
        cpu_refresh_core(m, core);
    }
    return at;
}

static void share_package(twin_model_t *m, int32_t package)
{
    int32_t first_core = m->first_core[package], end_core = m->first_core[package + 1];
    int32_t width = m->node.link_cores > 0 ? m->node.link_cores : end_core - first_core, threads = 0;
    double taken_gbs = 0;

    for (int32_t link = first_core; link < end_core; link += width) {
        int32_t first = threads;
        double link_taken_gbs = 0;
        for (int32_t core = link; core < link + width && core < end_core; core++)
            threads = gather_core(m, core, threads, &link_taken_gbs);
        if (m->node.link_cores > 0) {
            double gbs = left_of(link_capacity(m, first, threads), link_taken_gbs);
            at_least(m->share_stretch, first, threads, fitting_stretch(m, first, threads, gbs));
        }
        taken_gbs += link_taken_gbs;
    }
    double gbs = left_of(m->node.package_gbs, taken_gbs);
    at_least(m->share_stretch, 0, threads, fitting_stretch(m, 0, threads, gbs));
    threads = 0;
    for (int32_t core = first_core; core < end_core; core++)
        threads = apply_to_core(m, core, threads);
}

void bandwidth_share(twin_model_t *m)
{
    if (m->node.core_gbs <= 0)
        return;
    for (int32_t p = 0; p < m->node.n_packages; p++) {
        if (!m->demand_changed[p])
            continue;
        share_package(m, p);
        m->demand_changed[p] = 0;
    }
}
