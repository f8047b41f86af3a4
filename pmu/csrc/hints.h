/* Sleeping on the page of a job's hints (nodectl_hints.h), which the job may write, cut and destroy as it likes. */
#ifndef PMU_HINTS_H
#define PMU_HINTS_H

#include <stdint.h>

/*
 * Sleeps until `news` in the page differs from `seen`. 0: it does; ECANCELED: `stop`, an eventfd(2), has become readable; else
 * why nobody can sleep on this page. `page` is the mapping of `file`, of which only the address is used: the kernel
 * answers EFAULT where the job has cut the file short, and reading it here would raise SIGBUS.
 */
int hints_sleep(const void *page, int32_t file, uint32_t seen, int32_t stop);

/* Wakes who sleeps on the page. */
void hints_wake(const void *page);

#endif
