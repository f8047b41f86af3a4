/* Memory of a thread. */
#include "kernels.h"

#include <sys/mman.h>

void *memory_for(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* else a chase measures page walks too */
    return memory;
}
