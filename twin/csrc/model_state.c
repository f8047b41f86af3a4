/*
 * Functions for all parts of the model: random numbers, the time since the last flush, and of a unit the tables of its
 * phase and its remaining work.
 */
#include "model_internal.h"

/* --- random numbers: splitmix64 --- */

double model_uniform(twin_model_t *m)
{
    uint64_t z = (m->random += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

double model_normal(twin_model_t *m)
{
    double sum = -2.0;

    for (int i = 0; i < 4; i++)
        sum += model_uniform(m);
    return sum * 1.7320508075688772; /* variance of four uniforms is 1/3 */
}

/* --- time --- */

double model_elapsed_s(const twin_model_t *m)
{
    return (double)(m->step - m->flushed_step) * STEP_S;
}

/* --- units --- */

const twin_phase_t *unit_phase_of(const twin_model_t *m, int32_t unit)
{
    return &m->groups[m->unit_group[unit]].shape.phases[m->unit_phase[unit]];
}

const double *unit_table(const twin_model_t *m, int32_t unit, int32_t row)
{
    int32_t n_levels = unit < m->node.n_cpus ? m->node.n_levels : m->gpus[(unit - m->node.n_cpus) / TWIN_TENANTS].card.n_levels;

    return unit_phase_of(m, unit)->tables + (size_t)row * n_levels;
}

void unit_settle(twin_model_t *m, int32_t unit)
{
    double done = m->unit_rate[unit] * (double)(m->step - m->unit_since[unit]) * STEP_S;

    m->unit_remaining[unit] -= done;
    m->unit_since[unit] = m->step;
}
