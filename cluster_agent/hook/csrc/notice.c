/* The request and its answer: cluster_agent/serve/people_protocol.py has the fields (NotifyStart, NotifyEnd, Noticed),
 * cluster_agent/fabric/people.py the envelopes, [version, kind, body] and [version, error, status, body]. */
#include "hook.h"

#include <string.h>
#include <strings.h>

enum { PROTOCOL = 1 };

static void put_pair(frame_t *frame, const char *name, const char *text, size_t most)
{
    static char plain[4 * LARGEST + 1];
    make_plain(plain, sizeof plain, text, most);
    put_text(frame, name);
    put_text(frame, plain);
}

void write_request(frame_t *frame, const notice_t *notice, double wait_s)
{
    put_array(frame, 3);
    put_count(frame, PROTOCOL);
    put_text(frame, notice->is_start ? "notify-start" : "notify-end");
    put_map(frame, !notice->is_start ? 3 : notice->partition[0] ? 9 : 8);
    put_pair(frame, "job", notice->job, WORD);
    put_pair(frame, "cluster", notice->cluster, WORD);
    put_text(frame, "restarts");
    put_count(frame, notice->restarts);
    if (!notice->is_start)
        return;
    put_pair(frame, "node_list", notice->nodes, LARGEST);
    put_pair(frame, "user", notice->user, WORD);
    put_pair(frame, "title", notice->title, TITLE);
    put_pair(frame, "tag", notice->tag, WORD);
    if (notice->partition[0]) /* as of a request from Python: what has its default is left out */
        put_pair(frame, "partition", notice->partition, WORD);
    put_text(frame, "wait_s");
    put_seconds(frame, wait_s);
}

static outcome_t outcome_of(const char *state)
{
    static const struct {
        const char *word;
        outcome_t outcome;
    } STATES[] = {{"in force", IN_FORCE}, {"waiting", WAITING}, {"observing", OBSERVING}, {"not ours", NOT_OURS}};
    for (size_t at = 0; at < sizeof STATES / sizeof STATES[0]; at++)
        if (!strcmp(state, STATES[at].word))
            return STATES[at].outcome;
    return NO_HEAD;
}

/* The state and the last of the words of a ``Noticed``. */
static outcome_t read_noticed(reader_t *reader, char reason[REASON])
{
    outcome_t outcome = NO_HEAD;
    char name[32], state[32];
    for (uint32_t pairs = get_map(reader); pairs && !reader->is_bad; pairs--) {
        get_text(reader, name, sizeof name);
        if (!strcmp(name, "state")) {
            get_text(reader, state, sizeof state);
            outcome = outcome_of(state);
        } else if (!strcmp(name, "words")) {
            for (uint32_t lines = get_array(reader); lines && !reader->is_bad; lines--)
                get_text(reader, reason, REASON);
        } else {
            skip(reader);
        }
    }
    return outcome;
}

outcome_t read_answer(const notice_t *notice, const uint8_t *bytes, size_t size, char reason[REASON])
{
    reader_t reader = {bytes, bytes + size, false};
    char error[REASON];
    bool is_ours = get_array(&reader) == 4 && get_integer(&reader) == PROTOCOL;
    get_text(&reader, error, sizeof error);
    get_integer(&reader);
    if (is_ours && !reader.is_bad && error[0]) {
        strcpy(reason, error);
        return REFUSED;
    }
    outcome_t outcome = DONE;
    if (is_ours && notice->is_start)
        outcome = read_noticed(&reader, reason);
    if (!is_ours || reader.is_bad || outcome == NO_HEAD) {
        strcpy(reason, "what answers is no cluster agent of this version");
        return NO_HEAD;
    }
    return outcome;
}

const char *tag_in(const char *comment)
{
    static const char *const TAGS[] = {"memory", "mixed", "compute"}; /* budget/sharers/view.py */
    static const char MARK[] = "nodectl=";
    for (const char *at = comment; (at = strstr(at, MARK)); at++) {
        const char *word = at + sizeof MARK - 1;
        if (at != comment && !strchr(" ,;\t", at[-1]))
            continue;
        for (size_t tag = 0; tag < sizeof TAGS / sizeof TAGS[0]; tag++) {
            size_t size = strlen(TAGS[tag]);
            if (!strncasecmp(word, TAGS[tag], size) && (!word[size] || strchr(" ,;\t", word[size])))
                return TAGS[tag];
        }
    }
    return "";
}
