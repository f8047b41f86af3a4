/* SCMI over a serial line: see line.h. */
#include "line.h"

#define SYNC_0 0xa5u
#define SYNC_1 0x5au
#define HEAD_BYTES 6u
#define CRC_BYTES 2u
#define FRAMING_VERSION 1u
#define SMT_FREE 1u
#define SMT_ERROR 2u
#define LARGEST_MESSAGE (4u * (1 + SMT_PAYLOAD_WORDS))
#define STATUS_PROTOCOL_ERROR 0xfffffff6u

/* ---- CRC-16/CCITT-FALSE, four bits at a time ---- */

static uint32_t crc_with(uint32_t crc, uint8_t byte)
{
    static const uint16_t table[16] = {
        0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7,
        0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef,
    };
    crc = (crc << 4 ^ table[(crc >> 12 ^ byte >> 4) & 15]) & 0xffff;
    return (crc << 4 ^ table[(crc >> 12 ^ byte) & 15]) & 0xffff;
}

/* ---- rings ---- */

static uint32_t queued(const struct line_ring *r) { return r->in - r->out; }

static uint8_t peek(const struct line_ring *r, uint32_t at) { return r->byte[(r->out + at) % LINE_RING]; }

bool line_has_room(const struct line *l) { return queued(&l->rx) < LINE_RING; }

void line_receive(struct line *l, uint8_t byte)
{
    l->silent_ticks = 0;
    if (!line_has_room(l))
        return; /* the frame's CRC detects the loss */
    l->rx.byte[l->rx.in % LINE_RING] = byte;
    l->rx.in++;
}

int32_t line_transmit(struct line *l)
{
    if (queued(&l->tx) == 0)
        return -1;
    uint8_t byte = peek(&l->tx, 0);
    l->tx.out++;
    return byte;
}

bool line_is_sending(const struct line *l) { return queued(&l->tx) != 0; }

void line_tick(struct line *l)
{
    if (l->silent_ticks < LINE_SILENT_TICKS)
        l->silent_ticks++;
}

/* ---- sending ---- */

static void put_byte(struct line *l, uint32_t *at, uint8_t byte) { l->tx.byte[(*at)++ % LINE_RING] = byte; }

/* Queues a whole frame or nothing; false when it does not fit yet. */
static bool send(struct line *l, enum line_kind kind, uint8_t sequence, const void *payload, uint32_t bytes)
{
    const uint8_t head[4] = {(uint8_t)kind, sequence, (uint8_t)bytes, (uint8_t)(bytes >> 8)};
    const uint8_t *content = payload;
    uint32_t at = l->tx.in, crc = 0xffff;
    if (queued(&l->tx) + HEAD_BYTES + bytes + CRC_BYTES > LINE_RING)
        return false;
    put_byte(l, &at, SYNC_0);
    put_byte(l, &at, SYNC_1);
    for (uint32_t i = 0; i < 4 + bytes; i++) {
        uint8_t byte = i < 4 ? head[i] : content[i - 4];
        crc = crc_with(crc, byte);
        put_byte(l, &at, byte);
    }
    put_byte(l, &at, (uint8_t)crc);
    put_byte(l, &at, (uint8_t)(crc >> 8));
    l->tx.in = at;
    return true;
}

/* NAK and WELCOME are not queued for later: the other end repeats its frame. */
static void send_nak(struct line *l, uint8_t sequence) { send(l, LINE_NAK, sequence, 0, 0); }

static void send_welcome(struct line *l)
{
    static const uint8_t greeting[7] = {'S', 'C', 'M', 'I', FRAMING_VERSION, LINE_PAYLOAD & 0xff, LINE_PAYLOAD >> 8};
    send(l, LINE_WELCOME, 0, greeting, sizeof greeting);
}

static bool send_event(struct line *l)
{
    struct smt_area *area = board_area(l->board, l->channel, SMT_EVENTS);
    uint32_t words[1 + SMT_PAYLOAD_WORDS];
    if (area->status & SMT_FREE)
        return false;
    board_barrier(l->board);
    uint32_t bytes = area->length;
    if (bytes >= 4 && bytes <= LARGEST_MESSAGE) {
        words[0] = area->header;
        for (uint32_t i = 1; i < (bytes + 3) / 4; i++)
            words[i] = area->payload[i - 1];
        if (!send(l, LINE_EVENT, (uint8_t)(l->events + 1), words, bytes))
            return false;
        l->events++;
    }
    board_barrier(l->board);
    area->status = SMT_FREE;
    return true;
}

/* ---- the mailbox behind the line ---- */

/* A message that does not fit the area still gets a response: the mailbox counts and reports the error, and the status
 * is set here. */
static void collect_response(struct line *l)
{
    struct smt_area *area = board_area(l->board, l->channel, SMT_COMMANDS);
    uint32_t status = area->status, bytes;
    if (!l->is_in_flight || !(status & SMT_FREE))
        return;
    board_barrier(l->board);
    l->is_in_flight = false;
    if (!l->is_wanted)
        return;
    bytes = area->length;
    if (!(status & SMT_ERROR) && bytes >= 4 && bytes <= LARGEST_MESSAGE) {
        l->response_bytes = bytes;
        l->response[0] = area->header;
        for (uint32_t i = 1; i < (bytes + 3) / 4; i++)
            l->response[i] = area->payload[i - 1];
    } else if (l->response_bytes) { /* the header, kept by take_command */
        l->response[1] = STATUS_PROTOCOL_ERROR;
        l->response_bytes = 8;
    }
    l->has_response = l->response_due = true;
}

static void take_command(struct line *l, uint8_t sequence, uint32_t bytes)
{
    struct smt_area *area = board_area(l->board, l->channel, SMT_COMMANDS);
    if (l->has_sequence && sequence == l->sequence) {
        l->response_due = l->has_response; /* a repetition; if the command is unanswered, its response will follow */
        return;
    }
    if (l->is_in_flight || !(area->status & SMT_FREE)) {
        send_nak(l, sequence); /* an earlier command, which its sender has given up, is still being served */
        return;
    }
    l->has_sequence = l->is_wanted = true;
    l->sequence = sequence;
    l->has_response = l->response_due = false;
    area->status = 0;
    area->flags = 0;
    area->length = bytes;
    for (uint32_t i = 0; i <= SMT_PAYLOAD_WORDS; i++) {
        uint32_t word = 0;
        for (uint32_t k = 0; k < 4 && 4 * i + k < bytes; k++)
            word |= (uint32_t)peek(&l->rx, HEAD_BYTES + 4 * i + k) << 8 * k;
        if (i == 0)
            area->header = l->response[0] = word;
        else
            area->payload[i - 1] = word;
    }
    l->response_bytes = bytes >= 4 ? 4 : 0;
    l->is_in_flight = true;
    board_barrier(l->board);
    board_ring(l->board, l->channel);
}

/* ---- lock step ---- */

static int32_t take_24(struct line *l, uint32_t *at)
{
    uint32_t word = 0;
    for (uint32_t k = 0; k < 3; k++)
        word |= (uint32_t)peek(&l->rx, (*at)++) << 8 * k;
    return word == 0x800000 ? SENSOR_FAULT : (int32_t)(word ^ 0x800000) - 0x800000;
}

static void put_bytes(uint8_t **at, uint32_t value, uint32_t bytes)
{
    for (; bytes; bytes--, value >>= 8)
        *(*at)++ = (uint8_t)value;
}

/* Temperatures (mK) and capacitances (fF) in 24 bits, -2^23 for a fault; powers (uW) in 32. */
static void take_sensors(struct line *l, uint8_t sequence)
{
    uint32_t at = HEAD_BYTES;
    if (l->has_slot && sequence == l->slot_sequence) {
        l->actuators_due = !l->slot_due; /* a repetition: the slot has run, or is about to */
        return;
    }
    for (int i = 0; i < CORES; i++)
        l->sensors.temperature_mk[i] = take_24(l, &at);
    for (int i = 0; i < CORES; i++)
        l->sensors.capacitance_ff[i] = take_24(l, &at);
    for (int p = 0; p < POWER_DOMAINS; p++, at += 4) {
        uint32_t word = 0;
        for (uint32_t k = 0; k < 4; k++)
            word |= (uint32_t)peek(&l->rx, at + k) << 8 * k;
        l->sensors.power_uw[p] = (int32_t)word;
    }
    l->has_slot = l->slot_due = true;
    l->actuators_due = false;
    l->slot_sequence = sequence;
}

void line_slot_done(struct line *l, const struct operating_point *point)
{
    uint8_t *at = l->actuators;
    for (int i = 0; i < CORES; i++)
        put_bytes(&at, (uint32_t)point->freq_khz[i], 3);
    for (int d = 0; d < DOMAINS; d++)
        put_bytes(&at, (uint32_t)chip_volt_mv[point->level[d]], 2);
    l->slot_due = false;
    l->actuators_due = true;
}

/* ---- receiving ---- */

static void take(struct line *l, uint32_t kind, uint8_t sequence, uint32_t bytes)
{
    if (kind == LINE_HELLO) {
        l->has_sequence = l->is_wanted = l->has_response = l->response_due = false;
        send_welcome(l);
    } else if (kind == LINE_COMMAND) {
        take_command(l, sequence, bytes);
    } else if (kind == LINE_NAK && l->has_response && sequence == l->sequence) {
        l->response_due = true;
    } else if (kind == LINE_SENSORS && l->is_lock_step && bytes == LINE_SENSOR_BYTES) {
        take_sensors(l, sequence);
    } else if (kind == LINE_RESET && l->is_lock_step) {
        l->reset_due = true;
    }
}

static void skip_to_sync(struct line *l)
{
    uint32_t there = queued(&l->rx), at = 0;
    while (at < there && !(peek(&l->rx, at) == SYNC_0 && (at + 1 == there || peek(&l->rx, at + 1) == SYNC_1)))
        at++;
    l->rx.out += at;
}

/* Searches on from the byte after the sync, so that a whole frame inside a broken one is found. */
static bool take_broken(struct line *l)
{
    send_nak(l, peek(&l->rx, 3));
    l->rx.out++;
    return true;
}

static bool is_intact(const struct line *l, uint32_t end)
{
    uint32_t crc = 0xffff;
    for (uint32_t i = 2; i < end; i++)
        crc = crc_with(crc, peek(&l->rx, i));
    return crc == (peek(&l->rx, end) | (uint32_t)peek(&l->rx, end + 1) << 8);
}

static bool take_frame(struct line *l)
{
    bool is_silent = l->silent_ticks >= LINE_SILENT_TICKS; /* read it before counting the bytes */
    skip_to_sync(l);
    uint32_t there = queued(&l->rx);
    if (there >= HEAD_BYTES) {
        uint32_t kind = peek(&l->rx, 2), bytes = peek(&l->rx, 4) | (uint32_t)peek(&l->rx, 5) << 8;
        uint32_t end = HEAD_BYTES + bytes;
        if (bytes > LINE_PAYLOAD || kind < LINE_HELLO || kind > LINE_RESET)
            return take_broken(l);
        if (there >= end + CRC_BYTES) {
            if (!is_intact(l, end))
                return take_broken(l);
            take(l, kind, peek(&l->rx, 3), bytes);
            l->rx.out += end + CRC_BYTES;
            return true;
        }
    }
    if (there == 0 || !is_silent)
        return false;
    if (there >= HEAD_BYTES)
        return take_broken(l);
    l->rx.out++;
    return true;
}

static bool send_one(struct line *l)
{
    if (l->response_due && send(l, LINE_RESPONSE, l->sequence, l->response, l->response_bytes)) {
        l->response_due = false;
        return true;
    }
    if (l->actuators_due && send(l, LINE_ACTUATORS, l->slot_sequence, l->actuators, LINE_ACTUATOR_BYTES)) {
        l->actuators_due = false;
        return true;
    }
    return send_event(l);
}

bool line_step(struct line *l)
{
    collect_response(l);
    bool has_sent = send_one(l);
    return take_frame(l) || has_sent;
}

void line_init(struct line *l, struct board *board, int channel, bool is_lock_step)
{
    *l = (struct line){.board = board, .channel = channel, .is_lock_step = is_lock_step};
}
