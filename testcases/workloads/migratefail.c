/*
 * Two threads on node 1 share memory that lies on node 2, and that cannot come to them: node 1 is filled until less is
 * free there than its watermarks ask for (they are raised by vm.watermark_scale_factor=1000, a tenth of each zone).
 * The filler's mappings keep their policy, and are passed over by the scanner.
 */
#include "lab.h"

enum { NEAR = 1, FAR = 2, THREADS = 2, STEP = 4 * MIB };

static char *shared;
static size_t size;
static double until;

static char *memory_on(int node, int mode, size_t length)
{
	char *place = memory(length);

	base_pages(place, length);
	policy(place, length, mode, node);
	memset(place, 1, length);
	return place;
}

/* MiB */
static long free_on(int node)
{
	char line[128], path[64];
	long kib = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
	file = fopen(path, "r");
	if (!file)
		die(path);
	while (kib < 0 && fgets(line, sizeof(line), file))
		sscanf(line, "Node %*d MemFree: %ld kB", &kib);
	fclose(file);
	errno = ENODATA;
	if (kib < 0)
		die(path);
	return kib / 1024;
}

/* Each thread has a byte of its own in every page, and begins elsewhere than the other. */
static void *touch(void *me)
{
	volatile char *place = shared + (long)me;
	size_t pages = size / PAGE, at = (long)me * (pages / THREADS);

	run_on(NEAR);
	do
		for (int i = 0; i < 1024; i++, at++)
			place[at % pages * PAGE]++;
	while (now() < until);
	return NULL;
}

int main(int argc, char **argv)
{
	long left;

	if (argc != 4)
		usage("MIB SECONDS LEFT_MIB");
	size = number(argv[1]) * MIB;
	left = number(argv[3]);
	while (free_on(NEAR) > left)
		memory_on(NEAR, MPOL_BIND, STEP);
	shared = memory_on(FAR, MPOL_PREFERRED, size);
	policy(shared, size, MPOL_DEFAULT, -1);
	tell("free_mib", free_on(NEAR));
	until = now() + number(argv[2]);
	run_threads(THREADS, touch);
	return 0;
}
