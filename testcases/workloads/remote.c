/*
 * Threads share one buffer that was populated from node 0, and write to it all the time.
 *
 * Tells the minor faults of that time, those of populating left out.
 */
#include "lab.h"

static char *buffer;
static size_t size;
static double until;

static void *touch(void *unused)
{
	(void)unused;
	return (void *)touch_until(buffer, size, until);
}

int main(int argc, char **argv)
{
	cpu_set_t everywhere;
	long threads, faults, passes;

	if (argc != 4)
		usage("MIB SECONDS THREADS (0: one for each CPU)");
	size = number(argv[1]) * MIB;
	threads = number(argv[3]);
	if (!threads)
		threads = sysconf(_SC_NPROCESSORS_ONLN);
	if (sched_getaffinity(0, sizeof(everywhere), &everywhere))
		die("sched_getaffinity");
	run_on(0);
	buffer = memory(size);
	base_pages(buffer, size);
	policy(buffer, size, MPOL_LOCAL, -1);
	memset(buffer, 1, size);
	policy(buffer, size, MPOL_DEFAULT, -1);
	if (sched_setaffinity(0, sizeof(everywhere), &everywhere))
		die("sched_setaffinity");
	faults = minor_faults();
	until = now() + number(argv[2]);
	passes = run_threads(threads, touch);
	tell("touch_minor_faults", minor_faults() - faults);
	tell("passes", passes);
	return 0;
}
