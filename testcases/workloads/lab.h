/*
 * What the workloads' C programs share: an error ends the program, with a message and status 1; memory in base pages;
 * nodes' CPUs; threads; numbers told to the lab. workload.compile_c puts it where a program includes it.
 */
#ifndef LAB_H
#define LAB_H

#define _GNU_SOURCE
#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20, NSEC = 1000000000 };

__attribute__((noreturn)) static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}

__attribute__((noreturn)) static inline void usage(const char *words)
{
	fprintf(stderr, "usage: %s %s\n", program_invocation_short_name, words);
	exit(2);
}

/* A whole number of the command line, 0 or more. */
static inline long number(const char *text)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (end == text || *end || value < 0)
		errno = EINVAL;
	if (errno)
		die(text);
	return value;
}

/* Seconds on a clock that nobody sets. */
static inline double now(void)
{
	struct timespec t;

	if (clock_gettime(CLOCK_MONOTONIC, &t))
		die("clock_gettime");
	return t.tv_sec + (double)t.tv_nsec / NSEC;
}

/* From here on base pages, whatever the kernel's default: every counter then counts the same unit. */
static inline void base_pages(void *place, size_t size)
{
	if (madvise(place, size, MADV_NOHUGEPAGE) && errno != EINVAL)	/* EINVAL: a kernel without huge pages */
		die("madvise");
}

/* Private anonymous memory that no page stands behind yet. */
static inline char *memory(size_t size)
{
	char *place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (place == MAP_FAILED)
		die("mmap");
	return place;
}

/*
 * A policy for a mapping; without a node (-1) MPOL_DEFAULT or MPOL_LOCAL. While it has one, the scanner of NUMA balancing
 * passes it over (no MPOL_F_MOF): memory populated under MPOL_LOCAL and then given MPOL_DEFAULT was never scanned.
 */
static inline void policy(void *place, size_t size, int mode, int node)
{
	unsigned long mask = node < 0 ? 0 : 1ul << node;

	if (syscall(SYS_mbind, place, size, mode, mask ? &mask : NULL, mask ? 8 * sizeof(mask) : 0, 0))
		die("mbind");
}

/* A list as sysfs writes them (0-3,8), as a set: a node's CPUs, or nodes. An empty one is an error. */
static inline void read_list(const char *path, cpu_set_t *set)
{
	FILE *file = fopen(path, "r");
	int first, last, got;

	if (!file)
		die(path);
	CPU_ZERO(set);
	while (fscanf(file, "%d", &first) == 1) {
		last = first;
		got = fgetc(file);
		if (got == '-' && fscanf(file, "%d", &last) != 1)
			break;
		for (int i = first; i <= last; i++)
			CPU_SET(i, set);
		if (got == '-')
			fgetc(file);
	}
	fclose(file);
	errno = ENOENT;
	if (!CPU_COUNT(set))
		die(path);
}

/* Keep the calling thread, and those that it makes, on the CPUs of a node. */
static inline void run_on(int node)
{
	char path[64];
	cpu_set_t cpus;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	read_list(path, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		die("sched_setaffinity");
}

/* Run `count` threads at once, each with its number as argument, to their end; returns the sum of what they return. */
static inline long run_threads(long count, void *(*body)(void *))
{
	pthread_t *threads = calloc(count, sizeof(*threads));
	long sum = 0;

	if (!threads)
		die("calloc");
	for (long i = 0; i < count; i++)
		if ((errno = pthread_create(&threads[i], NULL, body, (void *)i)))
			die("pthread_create");
	for (long i = 0; i < count; i++) {
		void *result;

		if ((errno = pthread_join(threads[i], &result)))
			die("pthread_join");
		sum += (long)result;
	}
	free(threads);
	return sum;
}

/* Write to a byte of every page of a range, over and over, until a time comes; returns the passes that were whole. */
static inline long touch_until(volatile char *place, size_t size, double until)
{
	long passes = 0;

	for (;; passes++)
		for (size_t at = 0; at < size; at += PAGE) {
			if (at % MIB == 0 && now() >= until)
				return passes;
			place[at]++;
		}
}

/* Of all threads of this process, so far. */
static inline long minor_faults(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_SELF, &usage))
		die("getrusage");
	return usage.ru_minflt;
}

static inline void tell(const char *name, double value)
{
	if (printf("numalab: %s %.15g\n", name, value) < 0 || fflush(stdout))
		die("stdout");
}

#endif
