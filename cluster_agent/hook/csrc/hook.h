/* nodectl-hook: one notice to the cluster agent, one answer, never longer than a stated time.
 *
 * Units call only units above them in this list; it goes from the bottom up.
 * pack: MessagePack; socket: the way over the Unix socket; notice: the request and its answer; link: the way over a
 * link, with a key; main: the command line, Slurm's environment, and what an outcome means for the job.
 *
 *   pack, socket
 *   notice, link
 *   main
 */
#ifndef NODECTL_HOOK_H
#define NODECTL_HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ours: what a request over a link may have (people.LINK_REQUEST); a list of 60,000 odd names does not fit. */
enum { LARGEST = 1 << 15, WORD = 96, TITLE = 256, REASON = 400 };

/* --- pack.c */

typedef struct {
    uint8_t bytes[LARGEST];
    size_t size;
    bool is_full; /* something did not fit: the frame is void */
} frame_t;

typedef struct {
    const uint8_t *at, *end;
    bool is_bad; /* not what was expected; every later read fails, too */
} reader_t;

void put_array(frame_t *frame, unsigned items);
void put_map(frame_t *frame, unsigned pairs);
void put_text(frame_t *frame, const char *text);
void put_count(frame_t *frame, uint32_t value);
void put_seconds(frame_t *frame, double value);
void put_bytes(frame_t *frame, const void *bytes, size_t size);

uint32_t get_array(reader_t *reader);
uint32_t get_map(reader_t *reader);
int64_t get_integer(reader_t *reader);
void get_text(reader_t *reader, char *text, size_t room); /* cut to ``room`` - 1 bytes */
void skip(reader_t *reader);

/* Copy at most ``most`` characters of valid UTF-8; what is none, and control characters, become '?'. ``room`` must be
 * at least 4 * most + 1 bytes. */
void make_plain(char *into, size_t room, const char *from, size_t most);

/* --- notice.c */

typedef enum { IN_FORCE, OBSERVING, NOT_OURS, WAITING, DONE, REFUSED, NO_HEAD } outcome_t;

typedef struct {
    bool is_start;
    const char *job, *nodes, *cluster, *user, *title, *tag, *partition;
    uint32_t restarts;
} notice_t;

void write_request(frame_t *frame, const notice_t *notice, double wait_s);
/* ``reason``: one line, for people. */
outcome_t read_answer(const notice_t *notice, const uint8_t *bytes, size_t size, char reason[REASON]);
/* The word after "nodectl=" in a job's comment if it is a tag, else "". */
const char *tag_in(const char *comment);

/* --- socket.c and link.c: send ``frame``, and put what comes back into ``answer``. Returns its size, or 0 with a
 * ``reason``. Both give up at ``deadline_ms`` (of now_ms). */

int64_t now_ms(void); /* CLOCK_MONOTONIC */
size_t ask_socket(const char *path, const frame_t *frame, frame_t *answer, int64_t deadline_ms, char reason[REASON]);
size_t ask_link(const char *url, const frame_t *frame, frame_t *answer, int64_t deadline_ms, char reason[REASON]);

#endif
