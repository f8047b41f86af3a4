/* The link of another machine: CURVE over ZeroMQ, with a key of role notifier, as `clusterctl` has it.
 *
 * libzmq is loaded only here, so that a hook on the cluster agent's own machine needs libc alone. The numbers of its
 * options are those of zmq.h, which are part of its ABI. Nothing is closed: the process ends at once afterwards, and
 * zmq_ctx_term would wait for a name server. */
#include "hook.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { KEY = 40 }; /* characters of Z85 */
enum {
    ZMQ_DEALER = 5, ZMQ_LINGER = 17, ZMQ_RCVTIMEO = 27, ZMQ_SNDTIMEO = 28, ZMQ_IPV6 = 42,
    ZMQ_CURVE_PUBLICKEY = 48, ZMQ_CURVE_SECRETKEY = 49, ZMQ_CURVE_SERVERKEY = 50,
};
enum { OLDEST = 2, NEWEST = 3 }; /* versions of the link's protocol: foundation/wire/power_messages.py */

typedef struct {
    void *(*ctx_new)(void);
    void *(*socket)(void *context, int type);
    int (*setsockopt)(void *socket, int option, const void *value, size_t size);
    int (*connect)(void *socket, const char *endpoint);
    int (*send)(void *socket, const void *bytes, size_t size, int flags);
    int (*recv)(void *socket, void *bytes, size_t size, int flags);
} zmq_t;

static bool load(zmq_t *zmq)
{
    const char *name = getenv("NODECTL_LIBZMQ");
    void *library = dlopen(name ? name : "libzmq.so.5", RTLD_NOW);
    if (!library)
        return false;
    *(void **)&zmq->ctx_new = dlsym(library, "zmq_ctx_new");
    *(void **)&zmq->socket = dlsym(library, "zmq_socket");
    *(void **)&zmq->setsockopt = dlsym(library, "zmq_setsockopt");
    *(void **)&zmq->connect = dlsym(library, "zmq_connect");
    *(void **)&zmq->send = dlsym(library, "zmq_send");
    *(void **)&zmq->recv = dlsym(library, "zmq_recv");
    return zmq->ctx_new && zmq->socket && zmq->setsockopt && zmq->connect && zmq->send && zmq->recv;
}

/* The value of ``name = '...'`` in a key file. */
static bool read_key(const char *path, const char *name, bool is_secret, char key[KEY + 1], char reason[REASON])
{
    char line[256];
    struct stat status;
    FILE *file = fopen(path, "re");
    bool is_found = false;
    if (!file || fstat(fileno(file), &status)) {
        snprintf(reason, REASON, "%.200s: cannot read the key: %s", path, strerror(errno));
        if (file)
            fclose(file);
        return false;
    }
    if (is_secret && status.st_mode & (S_IRWXG | S_IRWXO))
        snprintf(reason, REASON, "%.200s: others may read this secret key: run `chmod 600` on it", path);
    else
        snprintf(reason, REASON, "%.200s: has no %s key", path, name);
    while (!(is_secret && status.st_mode & (S_IRWXG | S_IRWXO)) && !is_found && fgets(line, sizeof line, file)) {
        char *quote = strpbrk(line, "'\"");
        if (strncmp(line, name, strlen(name)) || !quote || strlen(quote) < KEY + 2)
            continue;
        memcpy(key, quote + 1, KEY);
        key[KEY] = '\0';
        is_found = true;
    }
    fclose(file);
    return is_found;
}

static bool prepare(const zmq_t *zmq, void *socket, const char *url, char reason[REASON])
{
    char public[KEY + 1], secret[KEY + 1], server[KEY + 1];
    const char *own = getenv("CLUSTERCTL_KEY"), *theirs = getenv("CLUSTERCTL_SERVER");
    int none = 0, is_ipv6 = !strncmp(url, "tcp://[", 7);
    if (!own || !theirs) {
        snprintf(reason, REASON, "a link needs --key FILE and --server FILE");
        return false;
    }
    if (!read_key(own, "public", true, public, reason) || !read_key(own, "secret", true, secret, reason) ||
        !read_key(theirs, "public", false, server, reason))
        return false;
    zmq->setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq->setsockopt(socket, ZMQ_IPV6, &is_ipv6, sizeof is_ipv6);
    if (zmq->setsockopt(socket, ZMQ_CURVE_PUBLICKEY, public, KEY + 1) ||
        zmq->setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret, KEY + 1) ||
        zmq->setsockopt(socket, ZMQ_CURVE_SERVERKEY, server, KEY + 1) || zmq->connect(socket, url)) {
        snprintf(reason, REASON, "%.200s: a key or the URL is wrong: tcp://HOST:PORT", url);
        return false;
    }
    return true;
}

/* The body of an answer [version, speaks, "answer", body], moved to the front; its size, or 0. */
static size_t unwrap(frame_t *answer, size_t size)
{
    reader_t reader = {answer->bytes, answer->bytes + size, false};
    char kind[16];
    bool is_ours = get_array(&reader) == 4;
    get_integer(&reader);
    get_integer(&reader);
    get_text(&reader, kind, sizeof kind);
    if (!is_ours || reader.is_bad || strcmp(kind, "answer"))
        return 0;
    size_t left = (size_t)(reader.end - reader.at);
    memmove(answer->bytes, reader.at, left);
    return left;
}

size_t ask_link(const char *url, const frame_t *frame, frame_t *answer, int64_t deadline_ms, char reason[REASON])
{
    static frame_t wrapped;
    zmq_t zmq;
    if (!load(&zmq)) {
        snprintf(reason, REASON, "libzmq cannot be loaded, which a link needs: install libzmq5");
        return 0;
    }
    void *context = zmq.ctx_new(), *socket = context ? zmq.socket(context, ZMQ_DEALER) : NULL;
    if (!socket) {
        snprintf(reason, REASON, "libzmq gives no socket");
        return 0;
    }
    if (!prepare(&zmq, socket, url, reason))
        return 0;
    put_array(&wrapped, 4);
    put_count(&wrapped, OLDEST);
    put_count(&wrapped, NEWEST);
    put_text(&wrapped, "ask");
    put_bytes(&wrapped, frame->bytes, frame->size);
    int left_ms = (int)(deadline_ms - now_ms()), got = -1;
    if (!wrapped.is_full && left_ms > 0) {
        zmq.setsockopt(socket, ZMQ_SNDTIMEO, &left_ms, sizeof left_ms);
        zmq.setsockopt(socket, ZMQ_RCVTIMEO, &left_ms, sizeof left_ms);
        if (zmq.send(socket, wrapped.bytes, wrapped.size, 0) >= 0)
            got = zmq.recv(socket, answer->bytes, sizeof answer->bytes, 0);
    }
    size_t size = got > 0 && (size_t)got <= sizeof answer->bytes ? unwrap(answer, (size_t)got) : 0;
    if (!size)
        snprintf(reason, REASON, "%.200s: %s", url, got > 0 ? "what answers is no cluster agent" : "no answer in time");
    return size;
}
