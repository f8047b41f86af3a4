/* Memory for one value per job, user or level. Internal to the scheduler and the replay. */
#ifndef CLUSTER_COLUMN_H
#define CLUSTER_COLUMN_H

#include <stdint.h>
#include <stdlib.h>

/* All rows at once; the kernel provides a page only when it is first written. Zeroes; NULL: no memory. */
static inline void *column(int32_t count, size_t size)
{
    return calloc(count > 0 ? (size_t)count : 1, size);
}

static inline int is_all_there(void *const *columns, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!columns[i])
            return 0;
    return 1;
}

#endif
