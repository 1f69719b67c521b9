/* The calls of libcuda that gpupack's proof makes, of a card of STANDIN_CARD_MIB MiB. A context uses 300 MiB.
 * The file STANDIN_LIMIT holds the path of a cgroup and its limit in MiB: it binds processes that the kernel
 * says are in that cgroup. What this process uses is written to STANDIN_USED. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t used_mib;

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

static size_t room_mib(void)
{
    char name[4096];
    size_t limit_mib, card_mib = strtoul(getenv("STANDIN_CARD_MIB"), NULL, 10);
    FILE *file = fopen(getenv("STANDIN_LIMIT"), "r");
    if (file && fscanf(file, "%4095s %zu", name, &limit_mib) == 2 && limit_mib < card_mib && in_cgroup(name))
        card_mib = limit_mib;
    if (file)
        fclose(file);
    return card_mib;
}

static int take(size_t mib)
{
    FILE *file;
    if (used_mib + mib > room_mib())
        return 2;
    used_mib += mib;
    file = fopen(getenv("STANDIN_USED"), "w");
    if (file) {
        fprintf(file, "%zu", used_mib);
        fclose(file);
    }
    return 0;
}

int cuInit(unsigned flags) { return flags ? 1 : strcmp(getenv("CUDA_VISIBLE_DEVICES"), "GPU-a") ? 100 : 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &used_mib; return device == 7 ? take(300) : 101; }
int cuCtxSetCurrent(void *context) { return context == &used_mib ? 0 : 201; }
int cuMemGetInfo_v2(size_t *free_b, size_t *total_b)
{
    *total_b = room_mib() << 20;
    *free_b = *total_b - (used_mib << 20);
    return 0;
}
int cuMemAlloc_v2(unsigned long long *place, size_t size) { *place = 4096; return take(size >> 20); }
int cuGetErrorName(int code, const char **text)
{
    *text = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : NULL;
    return *text == NULL;
}
