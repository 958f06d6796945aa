/* NVML without a driver, for the faults that no healthy GPU has: functions that tunecheck asks, as nvml.h declares them.

   What they answer stands in the folder $FAKE_NVML, which is read again at every call (benchmarks/chaos/driver.py):

   answers     a function's name (or a pattern), and its answer: numbers, text, "! CODE" for an error of NVML, "hangs" or
               "crashes". The first line that matches counts; what has none is not supported. "mig:" goes before the name
               where a MIG instance is asked.
   processes   process id, bytes and name of what computes on the GPU; those that have ended hold nothing.
   events      type and data of what happened to the GPU. */

#include <errno.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, LINE = 256, MOST = 3 };

typedef unsigned long long number;
struct memory { number total, free, used; };
struct process { unsigned pid; number bytes; unsigned gpu_instance, compute_instance; };
struct field { unsigned id, scope; long long timestamp, latency; int type, status; union { double d; unsigned u; } value; };
struct event { void *device; number type, data; unsigned gpu_instance, compute_instance; };

static char gpu[1], mig[1]; /* their addresses are the handles */
static int events_seen;

static FILE *opened(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), name);
    return fopen(path, "r");
}

/* Copy the answer, and return NVML's code. */
static int text(const void *device, const char *function, char *answer, size_t size)
{
    char asked[LINE], line[LINE], pattern[LINE], said[LINE] = "! 3";
    snprintf(asked, sizeof asked, "%s%s", device == mig ? "mig:" : "", function);
    FILE *answers = opened("answers");
    while (answers && fgets(line, sizeof line, answers)) {
        int begins = 0;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%s %n", pattern, &begins) == 1 && fnmatch(pattern, asked, 0) == 0) {
            snprintf(said, sizeof said, "%s", line + begins);
            break;
        }
    }
    if (answers)
        fclose(answers);
    while (strcmp(said, "hangs") == 0)
        pause();
    if (strcmp(said, "crashes") == 0)
        raise(SIGSEGV);
    if (said[0] == '!')
        return atoi(said + 1);
    snprintf(answer, size, "%s", said);
    return SUCCESS;
}

static int numbers(const void *device, const char *function, number values[MOST])
{
    char said[LINE];
    int code = text(device, function, said, sizeof said);
    if (code == SUCCESS)
        sscanf(said, "%lli %lli %lli", (long long *)values, (long long *)values + 1, (long long *)values + 2);
    return code;
}

static int one(const void *device, const char *function, unsigned *value)
{
    number values[MOST] = {0};
    int code = numbers(device, function, values);
    *value = (unsigned)values[0];
    return code;
}

static int large(const void *device, const char *function, number *value)
{
    number values[MOST] = {0};
    int code = numbers(device, function, values);
    *value = values[0];
    return code;
}

/* Fill in at most so many living processes, with the name of the one that is asked for; return how many there are. */
static unsigned processes(struct process *found, unsigned most, unsigned asked, char *name)
{
    char line[LINE], called[LINE];
    unsigned count = 0;
    struct process next = {0};
    FILE *file = opened("processes");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%u %llu %255s", &next.pid, &next.bytes, called) != 3)
            continue;
        if (kill((pid_t)next.pid, 0) != 0 && errno == ESRCH)
            continue;
        if (name && next.pid == asked)
            strcpy(name, called);
        if (count < most)
            found[count] = next;
        count++;
    }
    if (file)
        fclose(file);
    return count;
}

int nvmlInitWithFlags(unsigned flags) { unsigned done; return one(NULL, __func__, &done); }
int nvmlShutdown(void) { unsigned done; return one(NULL, __func__, &done); }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { return text(NULL, __func__, version, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return one(NULL, __func__, (unsigned *)version); }

int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size)
{
    char found[LINE] = "";
    processes(NULL, 0, pid, found);
    snprintf(name, size, "%s", found);
    return found[0] ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetCount_v2(unsigned *count) { return one(NULL, __func__, count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = gpu;
    return one(gpu, __func__, &index);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    unsigned done;
    *device = strncmp(uuid, "MIG-", 4) == 0 ? mig : gpu;
    return one(*device, __func__, &done);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **instance)
{
    *instance = mig;
    return index == 0 ? one(device, __func__, &index) : NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) { return text(device, __func__, uuid, size); }
int nvmlDeviceGetName(void *device, char *name, unsigned size) { return text(device, __func__, name, size); }
int nvmlDeviceGetComputeMode(void *device, unsigned *mode) { return one(device, __func__, mode); }
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { return one(device, __func__, count); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) { return one(device, __func__, celsius); }
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz) { return one(device, __func__, mhz); }
int nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *pending) { return one(device, __func__, pending); }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, number *reasons) { return large(device, __func__, reasons); }
int nvmlDeviceGetSupportedEventTypes(void *device, number *types) { return large(device, __func__, types); }

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    number values[MOST] = {0};
    int code = numbers(device, __func__, values);
    *major = (int)values[0], *minor = (int)values[1];
    return code;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    int code = one(device, __func__, current);
    *pending = *current;
    return code;
}

/* Its numbers: the corrected errors, then those that are not. */
int nvmlDeviceGetTotalEccErrors(void *device, int uncorrected, int counter, number *count)
{
    number values[MOST] = {0};
    int code = numbers(device, __func__, values);
    *count = values[uncorrected];
    return code;
}

/* Its numbers: corrected, uncorrected, and whether one is pending; none ever fails. */
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    number values[MOST] = {0};
    int code = numbers(device, __func__, values);
    *corrected = (unsigned)values[0], *uncorrected = (unsigned)values[1], *pending = (unsigned)values[2], *failed = 0;
    return code;
}

/* Its numbers: the total, and what is used beside the processes. */
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    struct process found[MOST * 8];
    number values[MOST] = {0};
    int code = numbers(device, __func__, values);
    unsigned count = processes(found, MOST * 8, 0, NULL);
    memory->total = values[0], memory->used = values[1];
    for (unsigned each = 0; each < count && each < MOST * 8; each++)
        memory->used += found[each].bytes;
    memory->free = memory->total > memory->used ? memory->total - memory->used : 0;
    return code;
}

/* Its number: whether they are hidden, as inside of a container. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *found)
{
    unsigned hidden, room = *count;
    int code = one(device, __func__, &hidden);
    if (code != SUCCESS)
        return code;
    *count = hidden ? 0 : processes(found, found ? room : 0, 0, NULL);
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct process *found)
{
    (void)device, (void)found;
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
    for (int each = 0; each < count; each++)
        fields[each].status = one(device, __func__, &fields[each].value.u);
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) { unsigned done; *set = gpu; return one(NULL, __func__, &done); }

/* Return event number `wanted`, from 0; the number of events where there are not so many. */
static int event(int wanted, struct event *found)
{
    char line[LINE];
    int number_of = 0;
    FILE *events = opened("events");
    while (events && number_of <= wanted && fgets(line, sizeof line, events))
        if (sscanf(line, "%lli %lli", (long long *)&found->type, (long long *)&found->data) == 2)
            number_of++;
    if (events)
        fclose(events);
    return number_of;
}

int nvmlDeviceRegisterEvents(void *device, number types, void *set)
{
    unsigned done;
    struct event last;
    events_seen = event(1 << 30, &last); /* what happened before is no news */
    return one(device, __func__, &done);
}

int nvmlEventSetWait_v2(void *set, struct event *found, unsigned milliseconds)
{
    unsigned done;
    int code = one(NULL, __func__, &done);
    if (code != SUCCESS)
        return code;
    memset(found, 0, sizeof *found);
    if (event(events_seen, found) <= events_seen)
        return TIMEOUT;
    events_seen++;
    return SUCCESS;
}
