/* The controller as a whole: see firmware.h. */
#include "firmware.h"

#define WATCHDOG_TICKS (2 * TICKS_PER_SLOT) /* after this long without a control job the watchdog is no longer kicked */

/* ---- bypass for lower requests ---- */

static int32_t fastest(const struct operating_point *point, int domain)
{
    int32_t freq = 0;
    for (int i = domain * DOMAIN_CORES; i < (domain + 1) * DOMAIN_CORES; i++)
        freq = max32(freq, point->freq_khz[i]);
    return freq;
}

static void limit_domain(struct operating_point *point, int domain, int32_t freq_khz)
{
    for (int i = domain * DOMAIN_CORES; i < (domain + 1) * DOMAIN_CORES; i++)
        point->freq_khz[i] = min32(point->freq_khz[i], freq_khz);
}

/*
 * A clock below those of both the decision in force and the pending one draws less power than either was allowed, so it
 * needs no control law. The clock is lowered now, the voltage in the next fast job. The pending decision is lowered
 * too, else the next slot would raise the clock again.
 */
static void bypass(struct firmware *fw, int domain)
{
    struct control *c = &fw->control;
    int32_t target = requests_level(&fw->requests, domain);
    if (target >= fastest(&c->in_force, domain) || target >= fastest(&c->next, domain))
        return;
    limit_domain(&c->in_force, domain, target);
    limit_domain(&c->next, domain, target);
    c->next.level[domain] = chip_level_for(fastest(&c->next, domain));
    c->disturbed = true;
    for (int i = domain * DOMAIN_CORES; i < (domain + 1) * DOMAIN_CORES; i++)
        c->reasons[i] |= REASON_BYPASS;
    board_actuate(fw->board, &c->in_force);
    fw->voltage_due[domain] = true;
    fw->bypasses++;
}

/* The SCMI platform calls this while it serves a message or a FastChannel (scmi_init). */
static void lower_early(struct firmware *fw, int domain)
{
    if (!fw->options.bypass)
        return;
    if (fw->options.polled_messages)
        fw->bypass_due[domain] = true; /* as published: in the fast job */
    else
        bypass(fw, domain);
}

/* ---- start ---- */

void firmware_init(struct firmware *fw, struct board *board, const struct options *options)
{
    *fw = (struct firmware){.board = board, .options = *options};
    fw->executive.polled = options->polled_messages;
    fw->failed_checks = chip_check();
    control_init(&fw->control, options->law, options->step_after);
    fw->control.safe = fw->failed_checks != 0;
    requests_init(&fw->requests);
    scmi_init(&fw->scmi, fw, lower_early);
    board_actuate(board, &fw->control.in_force);
}

/* ---- jobs ---- */

static void fast_job(struct firmware *fw)
{
    struct sensors now;
    bool lowers = false;
    board_read(fw->board, &now);
    chip_bound_readings(&now);
    meter_sample(&fw->meter, &now);
    for (int d = 0; d < DOMAINS; d++) {
        if (fw->bypass_due[d]) {
            fw->bypass_due[d] = false;
            bypass(fw, d);
        }
        if (fw->voltage_due[d]) {
            fw->voltage_due[d] = false;
            fw->control.in_force.level[d] = chip_level_for(fastest(&fw->control.in_force, d));
            lowers = true;
        }
    }
    if (lowers)
        board_actuate(fw->board, &fw->control.in_force);
    fast_channel_poll(&fw->scmi);
    if (fw->kicked_slot != fw->slots) {
        fw->kicked_slot = fw->slots;
        fw->quiet_ticks = 0;
    }
    if (fw->quiet_ticks++ <= WATCHDOG_TICKS)
        board_kick_watchdog(fw->board);
}

static void control_job(struct firmware *fw)
{
    struct control *c = &fw->control;
    struct demand want;
    int expired;
    c->measured = c->in_force; /* at most sizeof(struct operating_point) / 16 times */
    c->in_force = c->next; /* at most sizeof(struct operating_point) / 16 times */
    for (int d = 0; d < DOMAINS; d++)
        fw->voltage_due[d] = false;
    board_actuate(fw->board, &c->in_force);
    fw->slots++;
    board_read(fw->board, &fw->sensors);
    chip_bound_readings(&fw->sensors);
    meter_close_slot(&fw->meter);
    while (requests_expire(&fw->requests, board_time_us(fw->board), &expired)) { /* at most AGENTS times */
        fast_channel_expired(&fw->scmi, expired);
        scmi_changed(&fw->scmi, expired);
    }
    requests_demand(&fw->requests, &want);
    control_step(c, &fw->sensors, &want);
    scmi_powercap_slot(&fw->scmi);
    scmi_sensor_slot(&fw->scmi);
    scmi_telemetry_slot(&fw->scmi);
    fast_channel_refresh(&fw->scmi);
    mailbox_flush_events(&fw->scmi);
}

static void message_job(struct firmware *fw)
{
    bool has_more = mailbox_serve(&fw->scmi);
    if (fw->options.polled_messages)
        for (int served = 1; has_more && served < AGENTS; served++)
            has_more = mailbox_serve(&fw->scmi);
    else if (has_more)
        executive_doorbell(&fw->executive);
    mailbox_flush_events(&fw->scmi);
}

/* ---- entry points ---- */

void firmware_tick(struct firmware *fw) { executive_tick(&fw->executive); }

void firmware_doorbell(struct firmware *fw) { executive_doorbell(&fw->executive); }

void firmware_do(struct firmware *fw, enum job job)
{
    if (job == JOB_FAST)
        fast_job(fw);
    else if (job == JOB_CONTROL)
        control_job(fw);
    else if (job == JOB_MESSAGES)
        message_job(fw);
}

enum job firmware_run(struct firmware *fw)
{
    enum job job = executive_take(&fw->executive);
    firmware_do(fw, job);
    return job;
}
