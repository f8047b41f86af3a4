#include "meter.h"

int meter_init(meter_t *m, memory_t *memory, const power_model_t *model, int32_t n_jobs, int64_t from_s)
{
    *m = (meter_t){.memory = memory, .model = *model, .at_s = from_s};
    m->job_uj = column(memory, n_jobs, sizeof *m->job_uj);
    m->since_s = column(memory, n_jobs, sizeof *m->since_s);
    m->drawn_uw = column(memory, n_jobs, sizeof *m->drawn_uw);
    return memory_status(memory);
}

int meter_copy(meter_t *m, memory_t *memory, const meter_t *from, int32_t n_jobs)
{
    if (meter_init(m, memory, &from->model, n_jobs, from->at_s) < 0)
        return -1;
    meter_t made = *m;
    *m = *from;
    m->memory = memory;
    m->job_uj = made.job_uj;
    m->since_s = made.since_s;
    m->drawn_uw = made.drawn_uw;
    m->n_steps = m->capacity = from->n_steps > 0;
    m->steps = resized(memory, NULL, 1, sizeof *m->steps);
    if (m->steps && m->n_steps)
        m->steps[0] = from->steps[from->n_steps - 1];
    return m->steps ? 0 : -1;
}

void meter_copy_job(meter_t *m, const meter_t *from, int32_t job)
{
    m->job_uj[job] = from->job_uj[job];
    m->since_s[job] = from->since_s[job];
    m->drawn_uw[job] = from->drawn_uw[job];
}

void meter_pass(meter_t *m, int64_t now_s)
{
    double seconds = (double)(now_s - m->at_s);
    if (m->n_steps) {
        int64_t drawn_uw = m->steps[m->n_steps - 1].drawn_uw;
        m->joules.cluster_uj += seconds * (double)drawn_uw;
        if (m->is_read)
            m->unread_uj += (now_s - m->at_s) * drawn_uw;
    }
    m->joules.idle_uj += seconds * (double)m->idle_uw;
    m->joules.off_uj += seconds * (double)m->off_uw;
    m->joules.switching_uj += seconds * (double)m->switching_uw;
    m->at_s = now_s;
}

static int64_t processor_uw(const meter_t *m, int32_t job, int32_t level)
{
    const power_model_t *model = &m->model;
    if (!model->job_busy_uw)
        return model->busy_uw[level];
    double share = (double)(model->busy_uw[level] - model->idle_uw) / (double)(model->busy_uw[0] - model->idle_uw);
    return model->idle_uw + (int64_t)((double)(model->job_busy_uw[job] - model->idle_uw) * share);
}

void meter_start(meter_t *m, int32_t job, int64_t width, int32_t level)
{
    m->since_s[job] = m->at_s;
    m->drawn_uw[job] = width * processor_uw(m, job, level);
    m->busy_uw += m->drawn_uw[job];
    m->busy += width;
}

void meter_stop(meter_t *m, int32_t job, int64_t width)
{
    m->job_uj[job] += (double)(m->at_s - m->since_s[job]) * (double)m->drawn_uw[job];
    m->busy_uw -= m->drawn_uw[job];
    m->busy -= width;
}

int meter_look(meter_t *m, const plan_row_t *row, int64_t processors)
{
    int64_t away = processors - row->kept;
    int64_t off_share_uw = away ? row->off_uw / away : 0, switching_share_uw = away ? row->switching_uw / away : 0;
    const cold_t *cold = &m->cold;
    int64_t cold_uw = cold->going * m->idle_off.switch_off_uw + cold->booting * m->idle_off.boot_uw;
    int64_t not_idle_uw = (cold->off + cold->going + cold->booting) * m->model.idle_uw;
    m->idle_uw =
        row->idle_uw - (m->busy - m->beyond) * m->model.idle_uw + (m->beyond ? row->bonus_uw : 0) - not_idle_uw;
    m->off_uw = row->off_uw - m->beyond * off_share_uw + cold->off * m->idle_off.off_uw;
    m->switching_uw = row->switching_uw - m->beyond * switching_share_uw + cold_uw;

    power_step_t step = {
        .at_s = m->at_s,
        .drawn_uw = m->idle_uw + m->off_uw + m->switching_uw + m->busy_uw,
        .cap_uw = row->cap_uw,
    };
    power_step_t *last = m->n_steps ? &m->steps[m->n_steps - 1] : NULL;
    if (last && last->at_s == step.at_s) {
        *last = step;
        return 0;
    }
    if (last && last->drawn_uw == step.drawn_uw && last->cap_uw == step.cap_uw)
        return 0;
    if (m->n_steps == m->capacity) {
        int64_t capacity = m->capacity ? 2 * m->capacity : 1024;
        power_step_t *steps = resized(m->memory, m->steps, capacity, sizeof *steps);
        if (!steps)
            return -1;
        m->steps = steps;
        m->capacity = capacity;
    }
    m->steps[m->n_steps++] = step;
    return 0;
}
