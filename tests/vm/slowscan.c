/*
 * What slowscan is about: two threads on node 1 share memory that lies on node 2 and that cannot be migrated,
 * since node 1 is full up to its watermarks (vm.watermark_scale_factor=1000). Prints the PTE updates of 12 s.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MIB = 1 << 20, SHARED = 64 * MIB, STEP = 4 * MIB, LEFT_KB = 110 * 1024, SECONDS = 12 };
enum { MPOL_DEFAULT_, MPOL_PREFERRED_, MPOL_BIND_ };

static char *shared;
static volatile int stop;

static long number(const char *path, const char *key)
{
	char line[256];
	long value = -1;
	FILE *file = fopen(path, "r");

	while (file && fgets(line, sizeof(line), file)) {
		char *at = strstr(line, key);

		if (at && sscanf(at + strlen(key), "%*[: ]%ld", &value) == 1)
			break;
	}
	if (!file || value < 0) {
		perror(path);
		exit(1);
	}
	fclose(file);
	return value;
}

static char *memory_on(int node, int mode, size_t size)
{
	unsigned long mask = 1ul << node;
	char *place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (place == MAP_FAILED || syscall(SYS_mbind, place, size, mode, &mask, 64, 0)) {
		perror("memory on a node");
		exit(1);
	}
	madvise(place, size, MADV_NOHUGEPAGE);
	memset(place, 1, size);
	return place;
}

static void *touch(void *number)
{
	cpu_set_t cpus;
	size_t at = (size_t)number * 977;

	CPU_ZERO(&cpus);
	CPU_SET(2, &cpus);
	CPU_SET(3, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	for (; !stop; at++)
		shared[at % (SHARED / 4096) * 4096 + (size_t)number]++;
	return NULL;
}

int main(void)
{
	pthread_t threads[2];
	long before;

	shared = memory_on(2, MPOL_PREFERRED_, SHARED);
	if (syscall(SYS_mbind, shared, (size_t)SHARED, MPOL_DEFAULT_, NULL, 0, 0))
		return 1;
	while (number("/sys/devices/system/node/node1/meminfo", "MemFree") > LEFT_KB)
		memory_on(1, MPOL_BIND_, STEP);
	before = number("/proc/vmstat", "numa_pte_updates");
	for (size_t i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, touch, (void *)i);
	sleep(SECONDS);
	stop = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	printf("%ld\n", number("/proc/vmstat", "numa_pte_updates") - before);
	return 0;
}
