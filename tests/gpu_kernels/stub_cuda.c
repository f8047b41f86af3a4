/* A driver API for tests: one device, whose memory is the host's, and which computes what the PTX of the two kernels
 * says. It is strict where the driver is: nothing before cuInit, nothing without a current context, no unknown function,
 * no copy outside an allocation. STUB_CUDA in the environment makes it fail: "no-device", "old", "wrong", "launch". */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_IMAGE = 200,
       INVALID_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
enum { MOST = 64, SMS = 2 };

static int is_ready, contexts, modules;
static __thread int is_current;
static struct { char *at; size_t bytes; } memory[MOST];
static const char FMA[] = "nodectl_fma", STREAM[] = "nodectl_stream";

static int fails(const char *how)
{
    const char *set = getenv("STUB_CUDA");
    return set && strcmp(set, how) == 0;
}

static float *within(uint64_t address, size_t bytes)
{
    for (int i = 0; i < MOST; i++)
        if (memory[i].at && (char *)(uintptr_t)address >= memory[i].at
            && (char *)(uintptr_t)address + bytes <= memory[i].at + memory[i].bytes)
            return (float *)(uintptr_t)address;
    return NULL;
}

int cuInit(unsigned flags)
{
    is_ready = flags == 0;
    return fails("no-device") ? NO_DEVICE : is_ready ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int status, const char **text)
{
    *text = status == NO_DEVICE ? "no CUDA-capable device is detected" : status == LAUNCH_FAILED
        ? "unspecified launch failure" : status == NOT_FOUND ? "named symbol not found" : "another error";
    return SUCCESS;
}

int cuDeviceGetByPCIBusId(int *device, const char *bus_id)
{
    if (!is_ready)
        return NOT_INITIALIZED;
    *device = 0;
    return strcmp(bus_id, "00000000:3B:00.0") == 0 ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == 16 ? SMS : attribute == 75 ? (fails("old") ? 6 : 9) : -1;
    return device == 0 && *value >= 0 ? SUCCESS : INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &contexts;
    contexts++;
    return device == 0 ? SUCCESS : INVALID_VALUE;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    is_current = 0;
    contexts--;
    return device == 0 ? SUCCESS : INVALID_VALUE;
}

int cuCtxSetCurrent(void *context)
{
    is_current = context == &contexts && contexts > 0;
    return is_current ? SUCCESS : INVALID_CONTEXT;
}

int cuCtxSynchronize(void) { return is_current ? SUCCESS : INVALID_CONTEXT; }

int cuModuleLoadData(void **module, const char *image)
{
    if (!is_current)
        return INVALID_CONTEXT;
    *module = &modules;
    modules++;
    return strstr(image, ".version 7.0") && strstr(image, FMA) && strstr(image, STREAM) ? SUCCESS : INVALID_IMAGE;
}

int cuModuleUnload(void *module) { return module == &modules && modules-- > 0 ? SUCCESS : INVALID_VALUE; }

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = strcmp(name, FMA) == 0 ? (void *)FMA : strcmp(name, STREAM) == 0 ? (void *)STREAM : NULL;
    return *function && module == &modules ? SUCCESS : NOT_FOUND;
}

int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    *total = *available = 1 << 20;
    return is_current ? SUCCESS : INVALID_CONTEXT;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    for (int i = 0; is_current && i < MOST; i++)
        if (!memory[i].at) {
            memory[i].at = malloc(bytes);
            memory[i].bytes = bytes;
            *address = (uint64_t)(uintptr_t)memory[i].at;
            return SUCCESS;
        }
    return OUT_OF_MEMORY;
}

int cuMemFree_v2(uint64_t address)
{
    for (int i = 0; i < MOST; i++)
        if (memory[i].at && (uint64_t)(uintptr_t)memory[i].at == address) {
            free(memory[i].at);
            memory[i].at = NULL;
            return SUCCESS;
        }
    return INVALID_VALUE;
}

int cuMemsetD32_v2(uint64_t address, unsigned value, size_t number)
{
    float *at = within(address, 4 * number);
    for (size_t i = 0; at && i < number; i++)
        memcpy(at + i, &value, 4);
    return at ? SUCCESS : INVALID_VALUE;
}

int cuMemcpyDtoH_v2(void *to, uint64_t address, size_t bytes)
{
    if (!is_current || !within(address, bytes))
        return INVALID_VALUE;
    memcpy(to, within(address, bytes), bytes);
    return SUCCESS;
}

static int run_fma(uint64_t threads, void **given)
{
    float *out = within(*(uint64_t *)given[0], 4 * threads);
    uint32_t steps = *(uint32_t *)given[1];
    float one = *(float *)given[3];
    if (!out || steps % 4)
        return INVALID_VALUE;
    float x = *(float *)given[2];
    for (uint32_t step = 0; step < steps; step++)
        x = x * one + one;
    for (uint64_t i = 0; i < threads; i++)
        out[i] = x + x + (x + x);
    if (fails("wrong"))
        out[threads - 1] += 1.0f;
    return SUCCESS;
}

static int run_stream(void **given)
{
    uint64_t numbers = *(uint64_t *)given[3];
    float *a = within(*(uint64_t *)given[0], 4 * numbers), *b = within(*(uint64_t *)given[1], 4 * numbers);
    float *c = within(*(uint64_t *)given[2], 4 * numbers), s = *(float *)given[4];
    for (uint64_t i = 0; a && b && c && i < numbers; i++)
        a[i] = b[i] + s * c[i];
    if (a && fails("wrong"))
        a[0] = 0.0f;
    return a && b && c ? SUCCESS : INVALID_VALUE;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **given, void **extra)
{
    if (!is_current)
        return INVALID_CONTEXT;
    if (y * z * ty * tz != 1 || shared || stream || extra || tx > 1024)
        return INVALID_VALUE;
    if (fails("launch"))
        return LAUNCH_FAILED;
    return function == (void *)FMA ? run_fma((uint64_t)x * tx, given) : run_stream(given);
}

/* For the tests: what is still there. */
int stub_left(void)
{
    int left = contexts + modules;
    for (int i = 0; i < MOST; i++)
        left += memory[i].at != NULL;
    return left;
}
