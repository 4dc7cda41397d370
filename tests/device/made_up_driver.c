/* As much of NVIDIA's management library as Kareus calls, by the signatures of nvml.h: one GPU that remembers its clock and limit.

   The environment says what it is like: FORBIDDEN, where locking needs rights; OLD, where a call is missing. */
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, FUNCTION_NOT_FOUND = 13 };
typedef struct made_up *gpu_t;

static unsigned locked_mhz = 0;
static const unsigned memory_mhz[] = {1593, 810};
static const unsigned sm_mhz[] = {1410, 1395, 210};

static int list(const unsigned *of, unsigned length, unsigned *count, unsigned *clocks) {
    if (*count < length) {
        *count = length;
        return INSUFFICIENT_SIZE;
    }
    *count = length;
    memcpy(clocks, of, length * sizeof *of);
    return OK;
}

static int text(const char *says, char *to, unsigned size) {
    if (strlen(says) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, says);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return error == NO_PERMISSION ? "Insufficient Permissions" : "Refused"; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { return text("580.95.05", version, size); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t *gpu) { *gpu = (gpu_t)&locked_mhz; return index ? NOT_FOUND : OK; }
int nvmlDeviceGetC2cModeInfoV(gpu_t gpu, void *mode) { return NOT_SUPPORTED; }
int nvmlDeviceGetName(gpu_t gpu, char *name, unsigned size) { return text("NVIDIA Made-Up", name, size); }
int nvmlDeviceGetUUID(gpu_t gpu, char *uuid, unsigned size) { return text("GPU-8f6c", uuid, size); }
int nvmlDeviceGetSupportedMemoryClocks(gpu_t gpu, unsigned *count, unsigned *clocks) {
    return list(memory_mhz, 2, count, clocks);
}
int nvmlDeviceGetSupportedGraphicsClocks(gpu_t gpu, unsigned at_mhz, unsigned *count, unsigned *clocks) {
    return at_mhz == 1593 ? list(sm_mhz, 3, count, clocks) : NOT_FOUND;
}
int nvmlDeviceSetGpuLockedClocks(gpu_t gpu, unsigned lowest_mhz, unsigned highest_mhz) {
    if (getenv("FORBIDDEN")) return NO_PERMISSION;
    locked_mhz = highest_mhz;
    return lowest_mhz == highest_mhz ? OK : NOT_SUPPORTED;
}
int nvmlDeviceResetGpuLockedClocks(gpu_t gpu) { locked_mhz = 0; return OK; }
static unsigned limit_mw = 400000;
int nvmlDeviceGetPowerManagementLimitConstraints(gpu_t gpu, unsigned *least_mw, unsigned *most_mw) {
    *least_mw = 100000;
    *most_mw = 400000;
    return OK;
}
int nvmlDeviceGetPowerManagementLimit(gpu_t gpu, unsigned *mw) { *mw = limit_mw; return OK; }
int nvmlDeviceSetPowerManagementLimit(gpu_t gpu, unsigned mw) {
    if (getenv("FORBIDDEN")) return NO_PERMISSION;
    limit_mw = mw;
    return OK;
}
int nvmlDeviceGetPowerManagementDefaultLimit(gpu_t gpu, unsigned *mw) { *mw = 400000; return OK; }
struct mask { unsigned bits[8]; };
struct profile { unsigned version, id, priority; struct mask conflicting; };
struct profiles { unsigned version; struct mask has; struct profile each[255]; };
struct current_profiles { unsigned version; struct mask has, requested, enforced; };
struct requested_profiles { unsigned version; struct mask asked; };
static struct mask requested;
int nvmlDeviceWorkloadPowerProfileGetProfilesInfo(gpu_t gpu, struct profiles *of) {
    if (getenv("OLD")) return FUNCTION_NOT_FOUND;
    of->has.bits[0] = 1 << 1 | 1 << 7 | 1 << 8; /* MAX_Q, LLM_TRAINING and one that is not for training */
    return OK;
}
int nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(gpu_t gpu, struct current_profiles *of) {
    of->requested = of->enforced = requested;
    of->enforced.bits[0] &= ~(1u << 7);
    return OK;
}
int nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(gpu_t gpu, const struct requested_profiles *of) {
    if (getenv("FORBIDDEN")) return NO_PERMISSION;
    for (int n = 0; n < 8; n++) requested.bits[n] |= of->asked.bits[n];
    return OK;
}
int nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(gpu_t gpu, const struct requested_profiles *of) {
    for (int n = 0; n < 8; n++) requested.bits[n] &= ~of->asked.bits[n];
    return OK;
}
int nvmlDeviceGetClockInfo(gpu_t gpu, int kind, unsigned *mhz) {
    *mhz = locked_mhz ? locked_mhz : 1410;
    return kind == 1 ? OK : NOT_SUPPORTED; /* NVML_CLOCK_SM */
}
int nvmlDeviceGetCurrentClocksEventReasons(gpu_t gpu, unsigned long long *bits) { *bits = 0x4 | 0x20; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(gpu_t gpu, unsigned long long *mj) { *mj = 7000000012345ULL; return OK; }
struct temperature { unsigned version; int sensor; int celsius; };
int nvmlDeviceGetTemperatureV(gpu_t gpu, struct temperature *of) {
    if (getenv("OLD")) return FUNCTION_NOT_FOUND;
    of->celsius = 61;
    return of->sensor == 0 ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetTemperature(gpu_t gpu, int sensor, unsigned *celsius) { *celsius = 57; return OK; }
