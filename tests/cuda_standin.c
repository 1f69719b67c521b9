/* The calls of libcuda that gpupack's proof and the tests' programs make, of the card STANDIN_CARD (else GPU-a)
 * with STANDIN_CARD_MIB MiB. A context uses 300 MiB.
 * The file STANDIN_LIMIT holds the path of a cgroup and its limit in MiB: it binds processes that the kernel
 * says are in that cgroup. MPS's variables bind the process that has them. What this process uses is written to
 * STANDIN_USED. A kernel does nothing but make a mistake. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MULTIPROCESSORS = 132, ATTRIBUTE_OF_THEM = 16, OUT_OF_MEMORY = 2, NO_DEVICE = 100, ILLEGAL_ADDRESS = 700 };

static size_t used_mib;
static int launched;

static const char *variable(const char *name, const char *otherwise)
{
    const char *found = getenv(name);
    return found ? found : otherwise;
}

static FILE *open_named(const char *name, const char *mode)
{
    const char *path = getenv(name);
    return path ? fopen(path, mode) : NULL;
}

static int in_cgroup(const char *name)
{
    char line[4096];
    int found = 0;
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file))
        if (strstr(line, name))
            found = 1;
    if (file)
        fclose(file);
    return found;
}

static size_t card_mib(void) { return strtoul(variable("STANDIN_CARD_MIB", "0"), NULL, 10); }

static size_t told_mib(void)
{
    char name[4096];
    size_t limit_mib, room_mib = card_mib();
    FILE *file = open_named("STANDIN_LIMIT", "r");
    if (file && fscanf(file, "%4095s %zu", name, &limit_mib) == 2 && limit_mib < room_mib && in_cgroup(name))
        room_mib = limit_mib;
    if (file)
        fclose(file);
    return room_mib;
}

/* A client of MPS is told the whole card's size, and refused beyond its limit. */
static size_t room_mib(void)
{
    size_t room = told_mib(), limit;
    char unit;
    if (sscanf(variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""), "0=%zu%c", &limit, &unit) == 2) {
        limit = unit == 'G' ? limit << 10 : limit;
        room = limit < room ? limit : room;
    }
    return room;
}

static int take(size_t mib)
{
    FILE *file;
    if (used_mib + mib > room_mib())
        return OUT_OF_MEMORY;
    used_mib += mib;
    file = open_named("STANDIN_USED", "w");
    if (file) {
        fprintf(file, "%zu", used_mib);
        fclose(file);
    }
    return 0;
}

int cuInit(unsigned flags)
{
    const char *card = variable("STANDIN_CARD", "GPU-a");
    return flags ? 1 : !card_mib() || strcmp(variable("CUDA_VISIBLE_DEVICES", card), card) ? NO_DEVICE : 0;
}
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal; }
int cuDeviceGetUuid_v2(unsigned char *bytes, int device)
{
    const char *at = variable("STANDIN_CARD", "") + strlen("GPU-");
    for (int count = 0; count < 16; count++, at += 2) {
        at += *at == '-';
        if (sscanf(at, "%2hhx", bytes + count) != 1)
            return 1;
    }
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = MULTIPROCESSORS * atoi(variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")) / 100;
    return attribute != ATTRIBUTE_OF_THEM;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &used_mib; return device == 7 ? take(300) : 101; }
int cuCtxSetCurrent(void *context) { return context == &used_mib ? 0 : 201; }
int cuMemGetInfo_v2(size_t *free_b, size_t *total_b)
{
    *total_b = told_mib() << 20;
    *free_b = *total_b - (used_mib << 20);
    return 0;
}
int cuMemAlloc_v2(unsigned long long *place, size_t size) { *place = 4096; return take(size >> 20); }
int cuModuleLoadData(void **module, const void *image) { *module = &launched; return !image; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = module; return !name; }
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra)
{
    launched = 1;
    return function != &launched;
}
int cuCtxSynchronize(void) { return launched ? ILLEGAL_ADDRESS : 0; }
int cuGetErrorName(int code, const char **text)
{
    *text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
            : code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
    return *text == NULL;
}
