/*
 * Rounds of threads that all begin at once, live for some seconds, and write to a slice of one buffer each: round after
 * round new threads come to the same slices. Other threads have populated them, each on the node where it was.
 */
#include "lab.h"

static char *buffer;
static size_t slice;
static double until;

static void *touch(void *me)
{
	return (void *)touch_until(buffer + (long)me * slice, slice, until);
}

static void *populate(void *me)
{
	memset(buffer + (long)me * slice, 1, slice);
	return NULL;
}

int main(int argc, char **argv)
{
	long threads, rounds, passes = 0;

	if (argc != 5)
		usage("THREADS MIB SECONDS ROUNDS");
	threads = number(argv[1]);
	slice = number(argv[2]) * MIB;
	rounds = number(argv[4]);
	buffer = memory(threads * slice);
	base_pages(buffer, threads * slice);
	policy(buffer, threads * slice, MPOL_LOCAL, -1);
	run_threads(threads, populate);
	policy(buffer, threads * slice, MPOL_DEFAULT, -1);
	while (rounds--) {
		until = now() + number(argv[3]);
		passes += run_threads(threads, touch);
	}
	tell("passes", passes);
	return 0;
}
