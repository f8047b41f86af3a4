/*
 * Sensor protocol 0x15: 18 scalars. 0-3 hottest core of a domain (mC), 4 package and 5-8 domain power (mW), 9 package
 * energy (uJ), 10-13 fastest clock of a domain (kHz), 14-17 its voltage (mV). The temperatures have a trip point each.
 */
#include "scmi_protocols.h"

#define FIRST_POWER 4
#define ENERGY 9
#define FIRST_CLOCK 10
#define FIRST_VOLT 14

#define TYPE_CELSIUS 0x2u
#define TYPE_VOLT 0x5u
#define TYPE_WATT 0x7u
#define TYPE_JOULE 0x8u
#define TYPE_HERTZ 0x14u
#define EXPONENT(e) ((uint32_t)(e) & 0x1fu)

/* Update intervals: mantissa and power of ten of a second. */
static const uint32_t intervals[] = {1u << 5 | EXPONENT(-2), 1u << 5 | EXPONENT(-1), 1u << 5};
static const uint32_t interval_slots[] = {20, 200, 2000};
#define INTERVALS (sizeof intervals / sizeof *intervals)

/* ---- readings ---- */

static int32_t domain_temperature_mc(const struct firmware *fw, uint32_t domain)
{
    int32_t hottest = INT32_MIN;
    for (uint32_t i = domain * DOMAIN_CORES; i < (domain + 1) * DOMAIN_CORES; i++)
        if (fw->sensors.temperature_mk[i] != SENSOR_FAULT)
            hottest = max32(hottest, fw->sensors.temperature_mk[i] - 273150);
    return hottest;
}

static int32_t read_sensor(const struct firmware *fw, uint32_t id, int64_t *value)
{
    const struct operating_point *point = &fw->control.in_force;
    if (id < FIRST_POWER) {
        *value = domain_temperature_mc(fw, id);
        return *value == INT32_MIN ? SCMI_HARDWARE_ERROR : SCMI_SUCCESS;
    }
    if (id < ENERGY) {
        int32_t power_uw = fw->meter.slot_uw[id - FIRST_POWER];
        *value = (power_uw + 500) / 1000;
        return power_uw == SENSOR_FAULT ? SCMI_HARDWARE_ERROR : SCMI_SUCCESS;
    }
    *value = 0;
    if (id == ENERGY)
        *value = (int64_t)fw->meter.energy_uj;
    else if (id >= FIRST_VOLT)
        *value = chip_volt_mv[point->level[id - FIRST_VOLT]];
    else
        for (uint32_t i = 0; i < DOMAIN_CORES; i++) {
            int32_t freq = point->freq_khz[(id - FIRST_CLOCK) * DOMAIN_CORES + i];
            *value = freq > *value ? freq : *value;
        }
    return SCMI_SUCCESS;
}

static void put_reading(uint32_t words[4], int64_t value)
{
    words[0] = (uint32_t)value;
    words[1] = (uint32_t)(value >> 32);
    words[2] = words[3] = 0; /* no timestamps */
}

/* ---- description ---- */

static void name_of(char *name, uint32_t id)
{
    if (id == FIRST_POWER)
        put_number(name, "power-package-", 0);
    else if (id == ENERGY)
        put_number(name, "energy-", 0);
    else if (id < FIRST_POWER)
        put_number(name, "temp-", (int)id);
    else if (id < ENERGY)
        put_number(name, "power-", (int)(id - FIRST_POWER) - 1);
    else if (id < FIRST_VOLT)
        put_number(name, "clock-", (int)(id - FIRST_CLOCK));
    else
        put_number(name, "volt-", (int)(id - FIRST_VOLT));
}

static uint32_t type_and_scale(uint32_t id)
{
    if (id < FIRST_POWER)
        return TYPE_CELSIUS | EXPONENT(-3) << 11;
    if (id < ENERGY)
        return TYPE_WATT | EXPONENT(-3) << 11;
    if (id == ENERGY)
        return TYPE_JOULE | EXPONENT(-6) << 11;
    return id < FIRST_VOLT ? TYPE_HERTZ | EXPONENT(3) << 11 : TYPE_VOLT | EXPONENT(-3) << 11;
}

static int32_t attributes(struct scmi *s, struct call *c)
{
    (void)s;
    put(c, SENSORS);
    for (int i = 0; i < 3; i++)
        put(c, 0);
    return SCMI_SUCCESS;
}

/* A descriptor has 28 bytes: four fit into a reply, after the count. */
static int32_t description_get(struct scmi *s, struct call *c)
{
    char name[20];
    uint32_t first = c->in[0], count = 4;
    uint32_t updates = scmi_is_before(s, c->agent, SENSOR, 0x20000) ? 0 : 1u << 30;
    uint32_t names = scmi_is_before(s, c->agent, SENSOR, 0x30000) ? 0 : 1u << 29;
    if (first >= SENSORS)
        return SCMI_INVALID_PARAMETERS;
    if (count > SENSORS - first)
        count = SENSORS - first;
    put(c, count | (SENSORS - first - count) << 16);
    for (uint32_t id = first; id < first + count; id++) { /* at most 4 times */
        name_of(name, id);
        put(c, id);
        put(c, updates | names | (id < TRIP_SENSORS));
        put(c, type_and_scale(id));
        put_text(c, name, 16);
    }
    return SCMI_SUCCESS;
}

static int32_t name_get(struct scmi *s, struct call *c)
{
    char name[20];
    (void)s;
    if (c->in[0] >= SENSORS)
        return SCMI_NOT_FOUND;
    name_of(name, c->in[0]);
    put(c, 0);
    put_text(c, name, 64);
    return SCMI_SUCCESS;
}

static int32_t no_axes(struct scmi *s, struct call *c)
{
    (void)s;
    return c->in[0] >= SENSORS ? SCMI_NOT_FOUND : SCMI_NOT_SUPPORTED;
}

static int32_t list_intervals(struct scmi *s, struct call *c)
{
    (void)s;
    uint32_t first = c->in[1];
    if (c->in[0] >= SENSORS)
        return SCMI_NOT_FOUND;
    if (first >= INTERVALS)
        return SCMI_INVALID_PARAMETERS;
    put(c, (uint32_t)(INTERVALS - first));
    for (uint32_t i = first; i < INTERVALS; i++) /* at most INTERVALS times */
        put(c, intervals[i]);
    return SCMI_SUCCESS;
}

/* ---- reading and configuration ---- */

static int32_t reading_get(struct scmi *s, struct call *c)
{
    uint32_t id = c->in[0], words[4];
    int64_t value;
    if (id >= SENSORS)
        return SCMI_NOT_FOUND;
    if (c->in[1] > 1)
        return SCMI_INVALID_PARAMETERS;
    if (c->in[1])
        return SCMI_NOT_SUPPORTED;
    if (!(s->sensor_config[id] & 1))
        return SCMI_PROTOCOL_ERROR;
    int32_t status = read_sensor(s->fw, id, &value);
    put_reading(words, value);
    for (int i = 0; i < (scmi_is_before(s, c->agent, SENSOR, 0x20000) ? 2 : 4); i++) /* at most 4 times */
        put(c, words[i]);
    return status;
}

static int32_t config_get(struct scmi *s, struct call *c)
{
    if (c->in[0] >= SENSORS)
        return SCMI_NOT_FOUND;
    put(c, s->sensor_config[c->in[0]]);
    return SCMI_SUCCESS;
}

static int find_interval(uint32_t config)
{
    for (uint32_t i = 0; i < INTERVALS; i++)
        if ((config >> 16) == intervals[i] >> 5 && (config >> 11 & 0x1fu) == (intervals[i] & 0x1fu))
            return (int)i;
    return -1;
}

static int32_t config_set(struct scmi *s, struct call *c)
{
    uint32_t id = c->in[0], config = c->in[1];
    if (id >= SENSORS)
        return SCMI_NOT_FOUND;
    if (scmi_is_denied(s, c->agent, 0, SENSOR))
        return SCMI_DENIED;
    if (config & 0x1fcu || (config >> 9 & 3u) > 2)
        return SCMI_INVALID_PARAMETERS;
    if (config & 2u)
        return SCMI_NOT_SUPPORTED; /* no timestamps */
    if (config >> 11 && find_interval(config) < 0)
        return SCMI_INVALID_PARAMETERS;
    uint32_t interval = config >> 11 ? config & ~0x7ffu : s->sensor_config[id] & ~0x7ffu; /* none given: unchanged */
    s->sensor_config[id] = interval | (config & 1u);
    return SCMI_SUCCESS;
}

/* ---- trip points and updates ---- */

static int32_t watch(struct call *c, bool *watches, uint32_t count)
{
    if (c->in[0] >= SENSORS)
        return SCMI_NOT_FOUND;
    if (c->in[1] > 1)
        return SCMI_INVALID_PARAMETERS;
    if (c->in[0] >= count)
        return SCMI_NOT_SUPPORTED;
    watches[c->in[0]] = c->in[1];
    return SCMI_SUCCESS;
}

static int32_t trip_notify(struct scmi *s, struct call *c) { return watch(c, s->trip_watch[c->agent], TRIP_SENSORS); }

static int32_t update_notify(struct scmi *s, struct call *c) { return watch(c, s->update_watch[c->agent], SENSORS); }

static int32_t trip_config(struct scmi *s, struct call *c)
{
    uint32_t id = c->in[0], control = c->in[1];
    if (id >= SENSORS)
        return SCMI_NOT_FOUND;
    if (scmi_is_denied(s, c->agent, 0, SENSOR))
        return SCMI_DENIED;
    if (control & ~0xff3u || (control >> 4 & 0xffu) != 0)
        return SCMI_INVALID_PARAMETERS;
    if (id >= TRIP_SENSORS)
        return SCMI_NOT_SUPPORTED;
    int64_t value = (int64_t)((uint64_t)c->in[3] << 32 | c->in[2]);
    if (value < -273150 || value > 1000000)
        return SCMI_OUT_OF_RANGE;
    s->trip_mode[id] = control & 3u;
    s->trip_mc[id] = (int32_t)value;
    s->trip_last_mc[id] = domain_temperature_mc(s->fw, id);
    return SCMI_SUCCESS;
}

static void check_trip(struct scmi *s, uint32_t id)
{
    int32_t now = domain_temperature_mc(s->fw, id), was = s->trip_last_mc[id], trip = s->trip_mc[id];
    bool is_rising = was < trip && now >= trip, is_falling = was >= trip && now < trip;
    uint32_t words[3] = {0, id, is_rising ? 1u << 16 : 0};
    if (now == INT32_MIN)
        return; /* every sensor has failed */
    s->trip_last_mc[id] = now;
    if (!((is_rising && s->trip_mode[id] & 1) || (is_falling && s->trip_mode[id] & 2)))
        return;
    for (int agent = 0; agent < AGENTS; agent++)
        if (s->trip_watch[agent][id])
            scmi_notify(s, agent, SCMI_SENSOR, 0, words, 3);
}

void scmi_sensor_slot(struct scmi *s)
{
    for (uint32_t id = 0; id < TRIP_SENSORS; id++)
        check_trip(s, id);
    for (uint32_t id = 0; id < SENSORS; id++) {
        int interval = find_interval(s->sensor_config[id]);
        uint32_t words[6] = {0, id};
        int64_t value;
        if (!(s->sensor_config[id] & 1) || (int32_t)(s->fw->slots - s->sensor_due[id]) < 0)
            continue;
        s->sensor_due[id] = s->fw->slots + interval_slots[interval < 0 ? 1 : interval];
        if (read_sensor(s->fw, id, &value) != SCMI_SUCCESS)
            continue;
        put_reading(words + 2, value);
        for (int agent = 0; agent < AGENTS; agent++)
            if (s->update_watch[agent][id])
                scmi_notify(s, agent, SCMI_SENSOR, 1, words, 6);
    }
}

static const struct command commands[] = {
    {.id = 0x1, .run = attributes},
    {.id = 0x3, .in_words = 1, .run = description_get},
    {.id = 0x4, .in_words = 2, .run = trip_notify, .about = SENSOR_ID},
    {.id = 0x5, .in_words = 4, .run = trip_config, .about = SENSOR_ID},
    {.id = 0x6, .in_words = 2, .run = reading_get, .about = SENSOR_ID},
    {.id = 0x7, .in_words = 2, .run = no_axes, .since = 0x20000},
    {.id = 0x8, .in_words = 2, .run = list_intervals, .since = 0x20000},
    {.id = 0x9, .in_words = 1, .run = config_get, .about = SENSOR_ID, .since = 0x20000},
    {.id = 0xa, .in_words = 2, .run = config_set, .about = SENSOR_ID, .since = 0x20000},
    {.id = 0xb, .in_words = 2, .run = update_notify, .about = SENSOR_ID, .since = 0x20000},
    {.id = 0xc, .in_words = 1, .run = name_get, .since = 0x30000},
    {.id = 0xd, .in_words = 2, .run = no_axes, .since = 0x30000},
};

const struct protocol_table scmi_sensor = {
    .id = SCMI_SENSOR, .version = 0x30001, .older = {0x30000, 0x20000, 0x10000},
    .commands = commands, .n_commands = sizeof commands / sizeof *commands,
};
