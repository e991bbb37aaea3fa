/*
 * A thread on each node that has CPUs writes to its slice of a file that all have mapped, MAP_SHARED. The file was
 * populated from the first of those nodes, so that all other slices are remote, and all of it is dirty.
 */
#include "lab.h"
#include <fcntl.h>

static char *map;
static size_t slice;
static double until;
static cpu_set_t nodes;

static int node_of(long thread)
{
	int node = -1;

	do
		while (!CPU_ISSET(++node, &nodes))
			;
	while (thread--);
	return node;
}

static void *touch(void *me)
{
	run_on(node_of((long)me));
	return (void *)touch_until(map + (long)me * slice, slice, until);
}

int main(int argc, char **argv)
{
	long threads, faults, passes;
	size_t size;
	int file;

	if (argc != 4)
		usage("FILE MIB SECONDS");
	read_list("/sys/devices/system/node/has_cpu", &nodes);
	threads = CPU_COUNT(&nodes);
	size = number(argv[2]) * MIB;
	slice = size / threads / PAGE * PAGE;
	file = open(argv[1], O_RDWR | O_CREAT | O_EXCL, 0600);
	if (file < 0 || ftruncate(file, size))
		die(argv[1]);
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (map == MAP_FAILED)
		die("mmap");
	run_on(node_of(0));
	policy(map, size, MPOL_LOCAL, -1);
	memset(map, 1, size);
	policy(map, size, MPOL_DEFAULT, -1);
	faults = minor_faults();
	until = now() + number(argv[3]);
	passes = run_threads(threads, touch);
	tell("touch_minor_faults", minor_faults() - faults);
	tell("passes", passes);
	return 0;
}
