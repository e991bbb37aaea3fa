/*
 * Rounds of threads that all begin at once, live for some seconds, and write to a slice of one buffer each: round after
 * round new threads come to the same slices. The first round populates them.
 */
#include "lab.h"

static char *buffer;
static size_t slice;
static double until;

static void *touch(void *me)
{
	return (void *)touch_until(buffer + (long)me * slice, slice, until);
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
	while (rounds--) {
		until = now() + number(argv[3]);
		passes += run_threads(threads, touch);
	}
	tell("passes", passes);
	return 0;
}
