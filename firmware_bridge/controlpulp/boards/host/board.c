/* The host board: see host.h. */
#include "../../src/firmware.h"
#include "../../src/line.h"
#include "host.h"

#include <string.h>

struct board {
    host_wires_t wires;
    struct smt_area areas[AGENTS][2];
    uint32_t doorbell[AGENTS];
    int64_t interrupt_ns[AGENTS]; /* when the doorbell's interrupt arrives */
    uint32_t completion[AGENTS];
    uint32_t fast[AGENTS][FAST_WORDS];
    volatile uint32_t *fast_window[AGENTS]; /* `fast`, memory of the agent's own, or NULL */
    uint64_t fast_address[AGENTS];
    host_plant_t plant;
    void *context;
    int64_t now_ns, next_tick_ns, busy_until_ns;
    enum job running;
    int32_t stall_ticks;
    uint32_t kicks, actuations;
    int64_t last_change_ns[DOMAINS];
    uint64_t fingerprint;
};

struct host {
    struct board board;
    struct firmware firmware;
    host_options_t options;
    struct line line;
    bool has_line;
};

_Static_assert(HOST_CORES == CORES && HOST_DOMAINS == DOMAINS && HOST_POWER_DOMAINS == POWER_DOMAINS, "host.h");
_Static_assert(HOST_AGENTS == AGENTS && HOST_FAST_WORDS == FAST_WORDS && HOST_JOBS == JOBS, "host.h");
_Static_assert(HOST_SMT_BYTES == sizeof(struct smt_area), "host.h");

/* ---- chip ---- */

static void update_plant(struct board *b)
{
    if (b->plant)
        b->plant(b->context, b->now_ns);
}

void board_read(struct board *b, struct sensors *out)
{
    update_plant(b);
    memcpy(out->temperature_mk, b->wires.temperature_mk, sizeof out->temperature_mk);
    memcpy(out->capacitance_ff, b->wires.capacitance_ff, sizeof out->capacitance_ff);
    memcpy(out->power_uw, b->wires.power_uw, sizeof out->power_uw);
}

static void hash(struct board *b, uint32_t word)
{
    b->fingerprint = (b->fingerprint ^ word) * 1099511628211u; /* FNV-1a, by words */
}

void board_actuate(struct board *b, const struct operating_point *point)
{
    update_plant(b);
    for (int i = 0; i < CORES; i++) {
        if (b->wires.freq_khz[i] != point->freq_khz[i])
            b->last_change_ns[i / DOMAIN_CORES] = b->now_ns;
        b->wires.freq_khz[i] = point->freq_khz[i];
        hash(b, (uint32_t)point->freq_khz[i]);
    }
    for (int d = 0; d < DOMAINS; d++) {
        b->wires.volt_mv[d] = chip_volt_mv[point->level[d]];
        hash(b, (uint32_t)point->level[d]);
    }
    b->actuations++;
}

uint64_t board_time_us(struct board *b) { return (uint64_t)b->now_ns / 1000; }

void board_kick_watchdog(struct board *b) { b->kicks++; }

/* ---- mailbox ---- */

struct smt_area *board_area(struct board *b, int channel, enum smt_direction direction)
{
    return &b->areas[channel][direction];
}

bool board_take_doorbell(struct board *b, int channel)
{
    bool is_rung = b->doorbell[channel] != 0;
    b->doorbell[channel] = 0;
    return is_rung;
}

void board_complete(struct board *b, int channel) { b->completion[channel] = (uint32_t)channel + 1; }

void board_signal_event(struct board *b, int channel) { b->completion[channel] = (uint32_t)channel + 1; }

volatile uint32_t *board_fast_window(struct board *b, int channel)
{
    return b->fast_window[channel];
}

uint64_t board_fast_address(struct board *b, int channel) { return b->fast_address[channel]; }

void board_barrier(struct board *b) { (void)b; }

/* ---- virtual time ---- */

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

static void deliver_interrupts(host_t *h)
{
    struct board *b = &h->board;
    for (; b->next_tick_ns <= b->now_ns; b->next_tick_ns += HOST_TICK_NS) {
        b->stall_ticks -= b->stall_ticks > 0;
        line_tick(&h->line);
        firmware_tick(&h->firmware);
    }
    for (int c = 0; c < AGENTS; c++)
        if (b->interrupt_ns[c] <= b->now_ns) {
            b->interrupt_ns[c] = INT64_MAX;
            firmware_doorbell(&h->firmware);
        }
}

/*
 * A job occupies the controller for its configured time. The fast and the control job take effect when they start,
 * since they write the actuators first. A message takes effect when its job ends, since its response is written last.
 */
static void run_jobs(host_t *h)
{
    struct board *b = &h->board;
    while (b->busy_until_ns <= b->now_ns && b->stall_ticks == 0) {
        if (b->running == JOB_MESSAGES) {
            b->running = JOB_NONE;
            firmware_do(&h->firmware, JOB_MESSAGES);
        }
        enum job job = executive_take(&h->firmware.executive);
        if (job == JOB_NONE)
            return;
        b->busy_until_ns = b->now_ns + h->options.job_ns[job];
        if (job == JOB_MESSAGES)
            b->running = job;
        else
            firmware_do(&h->firmware, job);
    }
}

/* Also serves the events that are due exactly at until_ns. */
void host_advance(host_t *h, int64_t until_ns)
{
    struct board *b = &h->board;
    for (;;) {
        deliver_interrupts(h);
        run_jobs(h);
        while (h->has_line && line_step(&h->line))
            run_jobs(h);
        int64_t next = b->next_tick_ns;
        if (b->busy_until_ns > b->now_ns)
            next = earlier(next, b->busy_until_ns);
        for (int c = 0; c < AGENTS; c++)
            next = earlier(next, b->interrupt_ns[c]);
        if (next > until_ns)
            break;
        b->now_ns = next;
    }
    if (b->now_ns < until_ns)
        b->now_ns = until_ns;
    update_plant(b);
}

int64_t host_now_ns(const host_t *h) { return h->board.now_ns; }

void host_stall(host_t *h, int32_t ticks) { h->board.stall_ticks = ticks; }

/* ---- start ---- */

uint64_t host_size(void) { return sizeof(struct host); }

host_t *host_open(void *memory, const host_options_t *options)
{
    host_t *h = memory;
    struct board *b = &h->board;
    struct options o = {.law = options->published_law ? LAW_PUBLISHED : LAW_OURS,
                        .polled_messages = options->polled_messages != 0, .bypass = options->bypass != 0,
                        .step_after = options->step_after < 0 ? STEP_AFTER : options->step_after};
    h->options = *options;
    b->running = JOB_NONE;
    b->fingerprint = 14695981039346656037u;
    for (int c = 0; c < AGENTS; c++) {
        b->areas[c][SMT_COMMANDS].status = b->areas[c][SMT_EVENTS].status = 1;
        b->interrupt_ns[c] = INT64_MAX;
        b->fast_window[c] = options->message_only >> c & 1 ? NULL : b->fast[c];
        b->fast_address[c] = 0x1000u * ((uint32_t)c + 1); /* there is no physical memory here */
    }
    for (int i = 0; i < CORES; i++)
        b->wires.temperature_mk[i] = SENSOR_FAULT;
    for (int p = 0; p < POWER_DOMAINS; p++)
        b->wires.power_uw[p] = SENSOR_FAULT;
    firmware_init(&h->firmware, b, &o);
    return h;
}

host_wires_t *host_wires(host_t *h) { return &h->board.wires; }

void host_attach(host_t *h, host_plant_t plant, void *context)
{
    h->board.plant = plant;
    h->board.context = context;
    update_plant(&h->board);
}

/* ---- the agents' side ---- */

uint8_t *host_area(host_t *h, int channel, int direction) { return (uint8_t *)&h->board.areas[channel][direction]; }

void host_ring(host_t *h, int channel, uint32_t value)
{
    h->board.doorbell[channel] = value;
    if (value)
        h->board.interrupt_ns[channel] = h->board.now_ns + h->options.interrupt_ns;
}

uint32_t host_doorbell(const host_t *h, int channel) { return h->board.doorbell[channel]; }

int host_take_completion(host_t *h, int channel)
{
    int is_rung = h->board.completion[channel] != 0;
    h->board.completion[channel] = 0;
    return is_rung;
}

uint32_t *host_fast_window(host_t *h, int channel) { return h->board.fast[channel]; }

void host_fast_map(host_t *h, int channel, uint32_t *words, uint64_t address)
{
    h->board.fast_window[channel] = words;
    h->board.fast_address[channel] = address;
    fast_channel_moved(&h->firmware.scmi, channel);
}

uint32_t host_message(host_t *h, int channel, const uint8_t *message, uint32_t bytes, uint8_t *reply)
{
    uint32_t in[SCMI_MESSAGE_WORDS] = {0}, out[SCMI_MESSAGE_WORDS];
    if (bytes < 4 || bytes > sizeof in)
        return 0;
    memcpy(in, message, bytes);
    uint32_t n = scmi_message(&h->firmware.scmi, channel, in, bytes, out);
    memcpy(reply, out, n);
    return n;
}

/* ---- serial line ---- */

void board_ring(struct board *b, int channel) { host_ring((host_t *)b, channel, (uint32_t)channel + 1); }

void host_line_open(host_t *h, int channel)
{
    line_init(&h->line, &h->board, channel, false);
    h->has_line = true;
}

/* Each byte is processed at once: a sender that is faster than the line would find the ring full. */
void host_line_write(host_t *h, const uint8_t *bytes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!line_has_room(&h->line))
            host_advance(h, h->board.now_ns);
        line_receive(&h->line, bytes[i]);
    }
    host_advance(h, h->board.now_ns);
}

uint32_t host_line_read(host_t *h, uint8_t *bytes, uint32_t n)
{
    uint32_t got = 0;
    int32_t byte;
    while (got < n && (byte = line_transmit(&h->line)) >= 0)
        bytes[got++] = (uint8_t)byte;
    return got;
}

/* ---- view ---- */

void host_view(const host_t *h, host_view_t *out)
{
    const struct firmware *fw = &h->firmware;
    const struct guard *guard = &fw->control.guard;
    *out = (host_view_t){
        .slots = fw->slots,
        .overruns_fast = fw->executive.overruns[JOB_FAST],
        .overruns_control = fw->executive.overruns[JOB_CONTROL],
        .bypasses = fw->bypasses,
        .commands = fw->scmi.commands,
        .kicks = h->board.kicks,
        .actuations = h->board.actuations,
        .margin_uw = fw->control.margin_uw,
        .kept_slots = fw->control.kept_slots,
        .guard_faults = guard->faults,
        .guard_ever = guard->ever,
        .guard_alarms = guard->alarms,
        .guard_safe_slots = guard->safe_slots,
        .heat_mk = {guard->silicon / 256, guard->copper / 256, guard->sink / 256, guard->ambient / 256},
    };
    memcpy(out->fast_writes, fw->scmi.fast_writes, sizeof out->fast_writes);
    memcpy(out->gain_q16, fw->control.gain_q16, sizeof out->gain_q16);
    memcpy(out->reasons, fw->control.reasons, sizeof out->reasons);
    memcpy(out->last_change_ns, h->board.last_change_ns, sizeof out->last_change_ns);
}

uint64_t host_fingerprint(const host_t *h) { return h->board.fingerprint; }
