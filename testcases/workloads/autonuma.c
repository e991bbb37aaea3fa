/*
 * Processes whose threads zero memory, over and over: all of a buffer that they share, a part that each has for itself,
 * or a slice of the buffer each.
 */
#include "lab.h"
#include <sys/wait.h>

static enum { SHARED, OWN, SLICE } kind;
static size_t size, part;
static long passes, huge;
static char *buffer;

static char *fresh(size_t length)
{
	char *place = memory(length);

	if (!huge)
		base_pages(place, length);
	return place;
}

static void *zero(void *me)
{
	char *place = kind == OWN ? fresh(part) : kind == SLICE ? buffer + (long)me * part : buffer;
	size_t length = kind == SHARED ? size : part;

	for (long i = 0; i < passes; i++) {
		memset(place, 0, length);
		__asm__ volatile("" ::: "memory");	/* so that every pass is made */
	}
	return NULL;
}

static void run(long threads)
{
	part = size / threads / PAGE * PAGE;
	if (kind != OWN)
		buffer = fresh(size);
	run_threads(threads, zero);
}

int main(int argc, char **argv)
{
	static const char *const kinds[] = { "shared", "own", "slice" };
	long processes, threads;
	int status, bad = 0;

	if (argc != 7)
		usage("PROCESSES THREADS shared|own|slice MIB PASSES HUGE (of each process; HUGE 1: pages as the kernel likes)");
	processes = number(argv[1]);
	threads = number(argv[2]);
	while (strcmp(argv[3], kinds[kind]))
		if (++kind > SLICE)
			usage("… shared|own|slice …");
	size = number(argv[4]) * MIB;
	passes = number(argv[5]);
	huge = number(argv[6]);
	if (!processes || !threads)
		usage("1 or more processes and threads");
	for (long i = 0; i < processes; i++) {
		pid_t child = fork();

		if (child < 0)
			die("fork");
		if (!child) {
			run(threads);
			exit(0);
		}
	}
	while (wait(&status) > 0)
		bad |= status;
	return bad ? 1 : 0;
}
