/*
 * Processes whose threads zero a buffer of their process, over and over: all of it (shared), or a slice each (own, slice).
 * Where the memory lies at first is as in the original programs: with "shared" and "own" every thread first zeroes all of
 * the buffer, bound to one of the first two nodes with memory, the same for all, by the second in which it began (node 0 or 1
 * with NO_BIND_FORCE_SAME_NODE, with which they are built); with "slice" the main thread does, on its node.
 */
#include "lab.h"
#include <sys/wait.h>

static enum { SHARED, OWN, SLICE } kind;
static size_t size, part;
static long passes, huge;
static char *buffer;
static unsigned long first;	/* node, as a mask */

static void pass(char *place, size_t length)
{
	memset(place, 0, length);
	__asm__ volatile("" ::: "memory");	/* so that every pass is made */
}

/* Memory that the calling thread touches first is of this node; of any, without one. */
static void bind(unsigned long mask)
{
	if (syscall(SYS_set_mempolicy, mask ? MPOL_BIND : MPOL_DEFAULT, mask ? &mask : NULL, mask ? 8 * sizeof(mask) : 0))
		die("set_mempolicy");
}

/* The first node with memory, or the second if there is one, as a mask. */
static unsigned long first_node(int second)
{
	cpu_set_t nodes;
	unsigned long mask = 0;

	/* has_memory is there since 4.13 only, unless memory can be hotplugged. No node is movable here. */
	read_list("/sys/devices/system/node/has_normal_memory", &nodes);
	for (int node = 0; node < 8 * (int)sizeof(mask); node++)
		if (CPU_ISSET(node, &nodes)) {
			if (mask && !second)
				break;
			second = second && !mask;
			mask = 1ul << node;
		}
	return mask;
}

static void *zero(void *me)
{
	char *place = kind == SHARED ? buffer : buffer + (long)me * part;
	size_t length = kind == SHARED ? size : part;

	if (kind != SLICE) {
		bind(first);
		pass(buffer, size);
		bind(0);
	}
	for (long i = 0; i < passes; i++)
		pass(place, length);
	return NULL;
}

static void run(long threads)
{
	part = size / threads / PAGE * PAGE;
	buffer = memory(size);
	if (!huge)
		base_pages(buffer, size);
	if (kind == SLICE)
		pass(buffer, size);
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
	first = first_node(time(NULL) & 1);
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
