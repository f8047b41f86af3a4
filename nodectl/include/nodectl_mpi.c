/* Hints of a program that waits in MPI, without a change of the program (docs/hints.md).
 *
 *     cc -O2 -shared -fPIC -o libnodectl_mpi.so -I DIR DIR/nodectl_mpi.c -ldl    (DIR: `python -m nodectl.progress`)
 *     LD_PRELOAD=$PWD/libnodectl_mpi.so mpirun ./app
 *
 * It stands before the calls of MPI in which a rank may wait for others, says on the page of hints that this thread
 * waits, and calls the next library that has the function: MPI itself, or another profiler. A wait of 5 ms or longer
 * wakes the agent when it ends. A call inside another one is not counted again.
 *
 * No header of MPI is needed, and one library serves Open MPI and MPICH: all arguments of these calls are pointers or
 * whole numbers, each of which x86-64 and 64-bit ARM pass in a register or eight bytes of the stack, so they are handed
 * on as they came. Fortran's `use mpi` and `mpif.h` are served, `use mpi_f08` is not; nor is a program that has MPI
 * linked into itself. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "nodectl_hints.h"

#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

#if !defined __x86_64__ && !defined __aarch64__
#error "nodectl_mpi.c counts on how x86-64 and 64-bit ARM pass arguments"
#endif

#define LONG_WAIT_NS 5000000 /* ours: twice what a woken agent takes until clocks follow; shorter waits wake nobody */

typedef long word; /* an argument, whatever it is */

static __thread int depth;

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The function of that name in the library after this one. Where MPI came with a module that was loaded for itself, as
 * Python loads modules, it is in none of the libraries that all can see: then it is among those of the caller. */
static void *next(void **cache, const char *name, void *caller)
{
    void *found = __atomic_load_n(cache, __ATOMIC_ACQUIRE), *handle;
    Dl_info who;

    if (found)
        return found;
    found = dlsym(RTLD_NEXT, name);
    if (found == NULL && dladdr(caller, &who)) {
        handle = dlopen(who.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        found = handle ? dlsym(handle, name) : NULL;
    }
    if (found == NULL) {
        fprintf(stderr, "nodectl_mpi: no library after this one has %s\n", name);
        abort();
    }
    __atomic_store_n(cache, found, __ATOMIC_RELEASE);
    return found;
}

static int64_t begin(void)
{
    if (depth++ || nodectl_hints_page() == NULL)
        return 0;
    nodectl_hints_wait_begin();
    return now_ns();
}

static void end(int64_t began_ns)
{
    depth--;
    if (began_ns == 0)
        return;
    nodectl_hints_wait_end();
    if (now_ns() - began_ns >= LONG_WAIT_NS)
        nodectl_hints_tell(nodectl_hints_page());
}

#define WRAPPED(name, parameters, arguments)                                \
    int name parameters;                                                    \
    int name parameters                                                     \
    {                                                                       \
        static void *cache;                                                 \
        int (*real) parameters;                                             \
        int64_t began_ns;                                                   \
        int result;                                                         \
        *(void **)&real = next(&cache, #name, __builtin_return_address(0)); \
        began_ns = begin();                                                 \
        result = real arguments;                                            \
        end(began_ns);                                                      \
        return result;                                                      \
    }

#define OF1(name) WRAPPED(name, (word a), (a))
#define OF2(name) WRAPPED(name, (word a, word b), (a, b))
#define OF3(name) WRAPPED(name, (word a, word b, word c), (a, b, c))
#define OF4(name) WRAPPED(name, (word a, word b, word c, word d), (a, b, c, d))
#define OF5(name) WRAPPED(name, (word a, word b, word c, word d, word e), (a, b, c, d, e))
#define OF6(name) WRAPPED(name, (word a, word b, word c, word d, word e, word f), (a, b, c, d, e, f))
#define OF7(name) WRAPPED(name, (word a, word b, word c, word d, word e, word f, word g), (a, b, c, d, e, f, g))
#define OF8(name) \
    WRAPPED(name, (word a, word b, word c, word d, word e, word f, word g, word h), (a, b, c, d, e, f, g, h))
#define OF9(name)                                                                           \
    WRAPPED(name, (word a, word b, word c, word d, word e, word f, word g, word h, word i), \
            (a, b, c, d, e, f, g, h, i))
#define OF10(name)                                                                                  \
    WRAPPED(name, (word a, word b, word c, word d, word e, word f, word g, word h, word i, word j), \
            (a, b, c, d, e, f, g, h, i, j))
#define OF12(name)                                                                                                  \
    WRAPPED(name, (word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l), \
            (a, b, c, d, e, f, g, h, i, j, k, l))
#define OF13(name)                                                                                                    \
    WRAPPED(name,                                                                                                     \
            (word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l, word m), \
            (a, b, c, d, e, f, g, h, i, j, k, l, m))

/* In C, and in Fortran with one argument more, the error. */
OF1(MPI_Barrier)               OF2(mpi_barrier_)
OF5(MPI_Bcast)                 OF6(mpi_bcast_)
OF8(MPI_Gather)                OF9(mpi_gather_)
OF9(MPI_Gatherv)               OF10(mpi_gatherv_)
OF8(MPI_Scatter)               OF9(mpi_scatter_)
OF9(MPI_Scatterv)              OF10(mpi_scatterv_)
OF7(MPI_Allgather)             OF8(mpi_allgather_)
OF8(MPI_Allgatherv)            OF9(mpi_allgatherv_)
OF7(MPI_Alltoall)              OF8(mpi_alltoall_)
OF9(MPI_Alltoallv)             OF10(mpi_alltoallv_)
OF9(MPI_Alltoallw)             OF10(mpi_alltoallw_)
OF7(MPI_Reduce)                OF8(mpi_reduce_)
OF6(MPI_Allreduce)             OF7(mpi_allreduce_)
OF6(MPI_Reduce_scatter)        OF7(mpi_reduce_scatter_)
OF6(MPI_Reduce_scatter_block)  OF7(mpi_reduce_scatter_block_)
OF6(MPI_Scan)                  OF7(mpi_scan_)
OF6(MPI_Exscan)                OF7(mpi_exscan_)
OF7(MPI_Neighbor_allgather)    OF8(mpi_neighbor_allgather_)
OF8(MPI_Neighbor_allgatherv)   OF9(mpi_neighbor_allgatherv_)
OF7(MPI_Neighbor_alltoall)     OF8(mpi_neighbor_alltoall_)
OF9(MPI_Neighbor_alltoallv)    OF10(mpi_neighbor_alltoallv_)
OF9(MPI_Neighbor_alltoallw)    OF10(mpi_neighbor_alltoallw_)
OF6(MPI_Send)                  OF7(mpi_send_)
OF6(MPI_Ssend)                 OF7(mpi_ssend_)
OF7(MPI_Recv)                  OF8(mpi_recv_)
OF12(MPI_Sendrecv)             OF13(mpi_sendrecv_)
OF9(MPI_Sendrecv_replace)      OF10(mpi_sendrecv_replace_)
OF4(MPI_Probe)                 OF5(mpi_probe_)
OF2(MPI_Wait)                  OF3(mpi_wait_)
OF3(MPI_Waitall)               OF4(mpi_waitall_)
OF4(MPI_Waitany)               OF5(mpi_waitany_)
OF5(MPI_Waitsome)              OF6(mpi_waitsome_)
OF2(MPI_Win_fence)             OF3(mpi_win_fence_)
