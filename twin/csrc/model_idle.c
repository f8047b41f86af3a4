/*
 * Idle states of cores: how deep a core sleeps, what it draws, and how long it takes to wake.
 *
 * Law. A core without running or polling threads is in the deepest enabled state whose target residency is not above
 * the time for which it has been idle (ours: the kernel's governors guess that time instead). A state has its watts,
 * in place of the share of leakage that stays, and an exit latency, after which a thread that wakes begins its work.
 * While all cores of the node are in the deepest state there is, each package draws uncore_sleep_w by its uncore in
 * place of uncore_idle_w: one core awake keeps the links of all packages up (data: cpu-epyc-rome).
 *
 * States of two hyperthreads: a core sleeps as deep as both allow.
 *
 * Cost. O(cores) each millisecond on machines with idle states, nothing on others.
 */
#include "model_internal.h"

static int32_t state_at(const twin_model_t *m, int32_t core, int64_t steps)
{
    double idle_s = (double)steps * STEP_S;
    int32_t state = 0;

    for (int32_t s = 1; s < m->node.n_idle; s++)
        if ((m->idle_enabled[core] >> s & 1) && m->node.idle_residency_s[s] <= idle_s)
            state = s;
    return state;
}

/* The core changes to another state, or to none: the time in its present one is counted. */
static void change(twin_model_t *m, int32_t core, int32_t state)
{
    int32_t was = m->idle_state[core];

    if (was >= 0)
        m->idle_s[was * m->node.n_cores + core] += (double)(m->step - m->idle_since[core]) * STEP_S;
    m->idle_since[core] = m->step;
    m->idle_state[core] = state;
}

double idle_state_s(const twin_model_t *m, int32_t core, int32_t state)
{
    double counted = m->idle_s[state * m->node.n_cores + core];

    return counted + (m->idle_state[core] == state ? (double)(m->step - m->idle_since[core]) * STEP_S : 0.0);
}

void idle_note(twin_model_t *m, int32_t core, int32_t is_idle)
{
    if (m->node.n_idle <= 0 || is_idle == (m->idle_state[core] >= 0))
        return;
    m->n_asleep -= m->idle_state[core] == m->node.n_idle - 1;
    m->idle_step[core] = m->step;
    change(m, core, is_idle ? state_at(m, core, 1) : -1); /* its state in the coming step */
    m->n_asleep += m->idle_state[core] == m->node.n_idle - 1;
}

double idle_wake_s(const twin_model_t *m, int32_t core)
{
    if (m->node.n_idle <= 0 || m->idle_state[core] < 0)
        return 0.0;
    return m->node.idle_latency_s[state_at(m, core, m->step - m->idle_step[core])];
}

double idle_core_w(const twin_model_t *m, int32_t core, double leak_w)
{
    if (m->node.n_idle <= 0 || m->idle_state[core] < 0)
        return leak_w;
    return m->node.idle_core_w[m->idle_state[core]] * m->node.package_scale[m->node.package_of[core]];
}

double idle_uncore_w(const twin_model_t *m)
{
    return m->node.n_idle > 0 && m->n_asleep == m->node.n_cores ? m->node.uncore_sleep_w : m->node.uncore_idle_w;
}

void idle_tick(twin_model_t *m)
{
    if (m->node.n_idle <= 0)
        return;
    m->n_asleep = 0;
    for (int32_t core = 0; core < m->node.n_cores; core++) {
        if (m->idle_state[core] >= 0)
            change(m, core, state_at(m, core, m->step - m->idle_step[core] + 1));
        m->n_asleep += m->idle_state[core] == m->node.n_idle - 1;
    }
}
