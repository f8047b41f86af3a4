/* Functions for the files that answer seccomp notifications. serve.h has the functions that Python calls. */
#ifndef TWIN_SERVE_SECCOMP_H
#define TWIN_SERVE_SECCOMP_H

#include <linux/seccomp.h>

#include "serve.h"

int seccomp_next(int listener, struct seccomp_notif *call); /* 1: a call, 0: no more, -errno */
ssize_t task_memory(int32_t task, uint64_t address, void *to, size_t size); /* bytes read, or -1 */
ssize_t task_store(int32_t task, uint64_t address, const void *from, size_t size); /* bytes written, or -1 */
int seccomp_answer_value(int listener, uint64_t id, int64_t value); /* what the call returns */

#endif
