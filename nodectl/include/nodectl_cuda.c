/* Hints of a program that uses CUDA, without a change of the program (docs/hints.md).
 *
 *     cc -O2 -shared -fPIC -o libnodectl_cuda.so -I DIR DIR/nodectl_cuda.c -ldl    (DIR: `python -m nodectl.progress`)
 *     LD_PRELOAD=$PWD/libnodectl_cuda.so ./app
 *
 * It stands before the calls of the driver API that copy and that launch, gives the hint, and calls the driver.
 * Programs come to the driver by three ways, and all are served: linked with libcuda; by dlsym(3), as a CUDA runtime
 * that is linked into the program does; and by cuGetProcAddress, by which that runtime finds all else. Copies of
 * two and three dimensions, and those within a graph, are not seen; nor is a program without the dynamic linker.
 *
 * No header of CUDA is needed: all arguments of these calls are pointers or whole numbers, each of which x86-64 and
 * 64-bit ARM pass in a register or eight bytes of the stack, so they are handed on as they came. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "nodectl_hints.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#if !defined __x86_64__ && !defined __aarch64__
#error "nodectl_cuda.c counts on how x86-64 and 64-bit ARM pass arguments"
#endif
#if !defined __OPTIMIZE__
#error "nodectl_cuda.c hands dlsym(3) on by a jump, which the compiler makes with -O2 only"
#endif

typedef long word; /* an argument, whatever it is */

typedef struct {
    const char *name, *requested_as; /* the symbol; what cuGetProcAddress calls it */
    int is_per_thread;            /* the variant for a default stream of each thread */
    void *wrapper;
    void *real;
} wrapped_t;

enum {
    NOT_FOUND = 500,      /* CUDA_ERROR_NOT_FOUND */
    PER_THREAD_STREAM = 2 /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
};

/* Rows of `wrapped`. */
enum {
    HTOD, HTOD_PTDS, DTOH, DTOH_PTDS, ANY, ANY_PTDS, HTOD_ON, HTOD_ON_PTSZ, DTOH_ON, DTOH_ON_PTSZ, ANY_ON, ANY_ON_PTSZ,
    KERNEL, KERNEL_PTSZ, TOGETHER, TOGETHER_PTSZ, KERNEL_EX, KERNEL_EX_PTSZ, GRAPH, GRAPH_PTSZ, ASK, ASK_V2, COUNT
};

static wrapped_t wrapped[COUNT];

static void *real_dlsym(void *handle, const char *name)
{
    static void *(*cache)(void *, const char *);
    void *(*found)(void *, const char *) = __atomic_load_n(&cache, __ATOMIC_ACQUIRE);

    if (found == NULL) {
        *(void **)&found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (found == NULL)
            *(void **)&found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"); /* x86-64 before glibc 2.34 */
        if (found == NULL)
            *(void **)&found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17"); /* ARM before glibc 2.34 */
        if (found == NULL) {
            fputs("nodectl_cuda: the C library has no dlsym of a version that is known here\n", stderr);
            abort();
        }
        __atomic_store_n(&cache, found, __ATOMIC_RELEASE);
    }
    return found(handle, name);
}

/* What the program would have called. The slot is filled by whichever way it came; by the linker if by none. A driver
 * that came with a module that was loaded for itself is in none of the libraries that all can see. */
static void *real_of(wrapped_t *one)
{
    void *found = __atomic_load_n(&one->real, __ATOMIC_ACQUIRE), *none = NULL, *driver;

    if (found)
        return found;
    found = real_dlsym(RTLD_NEXT, one->name);
    if (found == NULL) {
        driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        found = driver ? real_dlsym(driver, one->name) : NULL;
    }
    if (found && !__atomic_compare_exchange_n(&one->real, &none, found, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return none;
    return found;
}

#define WRAPPED(number, name, parameters, hint, arguments) \
    int name parameters;                                   \
    int name parameters                                    \
    {                                                      \
        int (*real) parameters;                            \
        *(void **)&real = real_of(&wrapped[number]);       \
        hint;                                              \
        return real ? real arguments : NOT_FOUND;          \
    }

#define COPY(number, name) \
    WRAPPED(number, name, (word a, word b, word c), nodectl_hints_copy((uint64_t)c), (a, b, c))
#define COPY_ON(number, name) \
    WRAPPED(number, name, (word a, word b, word c, word d), nodectl_hints_copy((uint64_t)c), (a, b, c, d))
#define LAUNCH(number, name)                                                                          \
    WRAPPED(number, name,                                                                             \
            (word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k), \
            nodectl_hints_kernel(), (a, b, c, d, e, f, g, h, i, j, k))
#define LAUNCH_TOGETHER(number, name)                                                                                 \
    WRAPPED(number, name,                                                                                             \
            (word a, word b, word c, word d, word e, word f, word g, word h, word i, word j), nodectl_hints_kernel(), \
            (a, b, c, d, e, f, g, h, i, j))
#define LAUNCH_EX(number, name) \
    WRAPPED(number, name, (word a, word b, word c, word d), nodectl_hints_kernel(), (a, b, c, d))
#define LAUNCH_GRAPH(number, name) WRAPPED(number, name, (word a, word b), nodectl_hints_kernel(), (a, b))

COPY(HTOD, cuMemcpyHtoD_v2)
COPY(HTOD_PTDS, cuMemcpyHtoD_v2_ptds)
COPY(DTOH, cuMemcpyDtoH_v2)
COPY(DTOH_PTDS, cuMemcpyDtoH_v2_ptds)
COPY(ANY, cuMemcpy)
COPY(ANY_PTDS, cuMemcpy_ptds)
COPY_ON(HTOD_ON, cuMemcpyHtoDAsync_v2)
COPY_ON(HTOD_ON_PTSZ, cuMemcpyHtoDAsync_v2_ptsz)
COPY_ON(DTOH_ON, cuMemcpyDtoHAsync_v2)
COPY_ON(DTOH_ON_PTSZ, cuMemcpyDtoHAsync_v2_ptsz)
COPY_ON(ANY_ON, cuMemcpyAsync)
COPY_ON(ANY_ON_PTSZ, cuMemcpyAsync_ptsz)
LAUNCH(KERNEL, cuLaunchKernel)
LAUNCH(KERNEL_PTSZ, cuLaunchKernel_ptsz)
LAUNCH_TOGETHER(TOGETHER, cuLaunchCooperativeKernel)
LAUNCH_TOGETHER(TOGETHER_PTSZ, cuLaunchCooperativeKernel_ptsz)
LAUNCH_EX(KERNEL_EX, cuLaunchKernelEx)
LAUNCH_EX(KERNEL_EX_PTSZ, cuLaunchKernelEx_ptsz)
LAUNCH_GRAPH(GRAPH, cuGraphLaunch)
LAUNCH_GRAPH(GRAPH_PTSZ, cuGraphLaunch_ptsz)

/* Our function in place of the driver's. A second version of one stays the driver's own. */
static void *in_place_of(wrapped_t *one, void *real)
{
    void *none = NULL;

    if (real == NULL || real == one->wrapper)
        return real;
    if (__atomic_compare_exchange_n(&one->real, &none, real, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) || none == real)
        return one->wrapper;
    return real;
}

static void replace(const char *name, void **function, int version, uint64_t flags)
{
    int is_per_thread = (flags & PER_THREAD_STREAM) != 0;

    if (!strcmp(name, "cuGetProcAddress")) { /* which has five arguments since CUDA 12 */
        *function = in_place_of(&wrapped[version < 12000 ? ASK : ASK_V2], *function);
        return;
    }
    for (int at = 0; at < ASK; at++)
        if (!strcmp(wrapped[at].requested_as, name) && wrapped[at].is_per_thread == is_per_thread)
            *function = in_place_of(&wrapped[at], *function);
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    int (*real)(const char *, void **, int, uint64_t), error;

    *(void **)&real = real_of(&wrapped[ASK]);
    error = real ? real(name, function, version, flags) : NOT_FOUND;
    if (error == 0 && name && function)
        replace(name, function, version, flags);
    return error;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    int (*real)(const char *, void **, int, uint64_t, int *), error;

    *(void **)&real = real_of(&wrapped[ASK_V2]);
    error = real ? real(name, function, version, flags, status) : NOT_FOUND;
    if (error == 0 && name && function)
        replace(name, function, version, flags);
    return error;
}

static wrapped_t wrapped[COUNT] = {
#define ROW(number, name, requested_as, is_per_thread) [number] = {#name, requested_as, is_per_thread, (void *)name, NULL}
    ROW(HTOD, cuMemcpyHtoD_v2, "cuMemcpyHtoD", 0),
    ROW(HTOD_PTDS, cuMemcpyHtoD_v2_ptds, "cuMemcpyHtoD", 1),
    ROW(DTOH, cuMemcpyDtoH_v2, "cuMemcpyDtoH", 0),
    ROW(DTOH_PTDS, cuMemcpyDtoH_v2_ptds, "cuMemcpyDtoH", 1),
    ROW(ANY, cuMemcpy, "cuMemcpy", 0),
    ROW(ANY_PTDS, cuMemcpy_ptds, "cuMemcpy", 1),
    ROW(HTOD_ON, cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 0),
    ROW(HTOD_ON_PTSZ, cuMemcpyHtoDAsync_v2_ptsz, "cuMemcpyHtoDAsync", 1),
    ROW(DTOH_ON, cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 0),
    ROW(DTOH_ON_PTSZ, cuMemcpyDtoHAsync_v2_ptsz, "cuMemcpyDtoHAsync", 1),
    ROW(ANY_ON, cuMemcpyAsync, "cuMemcpyAsync", 0),
    ROW(ANY_ON_PTSZ, cuMemcpyAsync_ptsz, "cuMemcpyAsync", 1),
    ROW(KERNEL, cuLaunchKernel, "cuLaunchKernel", 0),
    ROW(KERNEL_PTSZ, cuLaunchKernel_ptsz, "cuLaunchKernel", 1),
    ROW(TOGETHER, cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 0),
    ROW(TOGETHER_PTSZ, cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 1),
    ROW(KERNEL_EX, cuLaunchKernelEx, "cuLaunchKernelEx", 0),
    ROW(KERNEL_EX_PTSZ, cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 1),
    ROW(GRAPH, cuGraphLaunch, "cuGraphLaunch", 0),
    ROW(GRAPH_PTSZ, cuGraphLaunch_ptsz, "cuGraphLaunch", 1),
    ROW(ASK, cuGetProcAddress, "", 0),
    ROW(ASK_V2, cuGetProcAddress_v2, "", 0),
};

/* All names but those above are handed on by a jump, so that the C library sees who asks: RTLD_NEXT depends on it. */
void *dlsym(void *restrict handle, const char *restrict name)
{
    if (name[0] == 'c' && name[1] == 'u' && handle != RTLD_NEXT)
        for (int at = 0; at < COUNT; at++)
            if (!strcmp(wrapped[at].name, name))
                return in_place_of(&wrapped[at], real_dlsym(handle, name));
    return real_dlsym(handle, name);
}
