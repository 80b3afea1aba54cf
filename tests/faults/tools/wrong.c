/* Put before libc by the loader (LD_PRELOAD), into a process that is not Python: its clock and its disk can be made
   wrong while it runs.

   FAULTS_WRONG names a file of two 64-bit numbers, which are looked at each time: by how many nanoseconds the clock is
   off (the monotonic clocks are not), and how many nanoseconds each sync takes longer. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const volatile int64_t *wrong; /* none before the file has been found */

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FAULTS_WRONG");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        wrong = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real ? real(clock, time) : (int)syscall(SYS_clock_gettime, clock, time);
    if (!failed && wrong && wrong[0] && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t off = wrong[0] + time->tv_nsec;
        time->tv_sec += off / SECOND - (off % SECOND < 0);
        time->tv_nsec = off % SECOND + (off % SECOND < 0 ? SECOND : 0);
    }
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    if (!failed) {
        time->tv_sec = now.tv_sec;
        time->tv_usec = now.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}

static void dawdle(void)
{
    int64_t longer = wrong ? wrong[1] : 0;
    struct timespec left = {longer / SECOND, longer % SECOND};
    while (longer > 0 && nanosleep(&left, &left) != 0)
        ;
}

int fsync(int file)
{
    dawdle();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    dawdle();
    return (int)syscall(SYS_fdatasync, file);
}

int msync(void *start, size_t length, int flags)
{
    if (flags & MS_SYNC)
        dawdle();
    return (int)syscall(SYS_msync, start, length, flags);
}
