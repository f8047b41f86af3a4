/*
 * Shared-memory mailbox: one commands area and one events area per agent (DEN0056 chapter 5).
 *
 * The other side can write its area at any time, so a message is copied first and only the copy is checked; the length
 * is read once. Setting FREE is the last write of an exchange.
 */
#include "scmi_service.h"

#define SMT_FREE 1u
#define SMT_ERROR 2u
#define SMT_INTERRUPT 1u

/* ---- commands ---- */

static void serve(struct scmi *s, int channel)
{
    struct board *board = s->fw->board;
    struct smt_area *area = board_area(board, channel, SMT_COMMANDS);
    uint32_t message[SCMI_MESSAGE_WORDS], reply[SCMI_MESSAGE_WORDS];
    if (area->status & SMT_FREE) {
        s->spurious_doorbells++;
        return;
    }
    board_barrier(board);
    uint32_t length = area->length, flags = area->flags, error = 0;
    if (length < 4 || length > 4 * SCMI_MESSAGE_WORDS) {
        uint32_t report[4] = {(uint32_t)channel + 1, 1, area->header, (uint32_t)SCMI_PROTOCOL_ERROR};
        s->transport_errors++;
        error = SMT_ERROR;
        for (int a = 0; a < AGENTS; a++)
            if (s->error_watch[a])
                scmi_notify(s, a, SCMI_BASE, 0, report, 4);
    } else {
        message[0] = area->header;
        for (uint32_t i = 0; i < (length - 1) / 4; i++) /* at most SMT_PAYLOAD_WORDS times */
            message[1 + i] = area->payload[i];
        uint32_t bytes = scmi_message(s, channel, message, length, reply);
        for (uint32_t i = 0; i < bytes / 4 - 1; i++) /* at most SCMI_REPLY_BYTES / 4 times */
            area->payload[i] = reply[1 + i];
        area->length = bytes;
    }
    board_barrier(board);
    area->status = SMT_FREE | error;
    if (flags & SMT_INTERRUPT)
        board_complete(board, channel);
}

/*
 * The value of the doorbell register names a sender and is ignored. Channels take turns: the search starts after the
 * channel that was served last, so that an agent that rings fast cannot block the others.
 */
bool mailbox_serve(struct scmi *s)
{
    struct board *board = s->fw->board;
    bool is_served = false;
    uint32_t first = s->next_channel;
    for (uint32_t i = 0; i < AGENTS; i++) {
        uint32_t channel = (first + i) % AGENTS;
        if (is_served) {
            if (!(board_area(board, (int)channel, SMT_COMMANDS)->status & SMT_FREE))
                return true;
        } else if (board_take_doorbell(board, (int)channel)) {
            serve(s, (int)channel);
            s->next_channel = (channel + 1) % AGENTS;
            is_served = true;
        }
    }
    return false;
}

/* ---- events ---- */

void mailbox_flush_events(struct scmi *s)
{
    struct board *board = s->fw->board;
    for (int agent = 0; agent < AGENTS; agent++) {
        struct event_queue *queue = &s->queue[agent];
        struct smt_area *area = board_area(board, agent, SMT_EVENTS);
        if (queue->count == 0 || !(area->status & SMT_FREE))
            continue;
        const struct event *event = &queue->event[queue->head];
        area->status = 0;
        area->flags = SMT_INTERRUPT;
        area->length = 4 * event->words;
        area->header = event->word[0];
        for (uint32_t i = 1; i < event->words; i++) /* at most EVENT_WORDS - 1 times */
            area->payload[i - 1] = event->word[i];
        board_barrier(board);
        queue->head = (queue->head + 1) % EVENT_QUEUE;
        queue->count--;
        board_signal_event(board, agent);
    }
}
